//! The table as bars, in SVG.

use std::fmt::Write;

use super::measure::Row;

const WIDTH: usize = 860;
const LABELS: usize = 350;
const BAR: usize = 18;
const TOP: usize = 56;

/// One bar a row: its ratio to the copy of the same states, or to what the row is compared with.
pub fn svg(setting: &str, rows: &[Row]) -> String {
    let ratio = |row: &Row| row.to_copy.or(row.to_decode).unwrap_or(row.median_us);
    let of_copy = rows.iter().any(|row| row.to_copy.is_some());
    let unit = if of_copy { "time, as a multiple of a copy of the same states" } else { "see the table" };
    let most = rows.iter().map(ratio).fold(1.0, f64::max);
    let height = TOP + rows.len() * (BAR + 6) + 24;
    let scale = (WIDTH - LABELS - 70) as f64 / most;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"13\">{}</text>\n<text x=\"12\" y=\"40\" fill=\"#555\">{unit}</text>\n",
        escape(setting)
    );
    // One, the copy itself, as a line through all bars.
    if of_copy {
        let x = LABELS as f64 + scale;
        let end = height - 20;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{end}\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>",
            TOP - 8
        );
    }
    for (i, row) in rows.iter().enumerate() {
        let (y, value) = (TOP + i * (BAR + 6), ratio(row));
        let text = y + 13;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABELS}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{text}\">{value:.2}</text>",
            LABELS - 8,
            escape(&format!("B={}: {}", row.batch, row.what)),
            value * scale,
            colour(&row.what),
            LABELS as f64 + value * scale + 6.0,
        );
    }
    out += "</svg>\n";
    out
}

/// One for each way to capture.
fn colour(what: &str) -> &'static str {
    match what {
        what if what.starts_with("copy") => "#9aa0a6",
        what if what.contains("state per token") => "#c5705d",
        what if what.contains("tree") => "#4f8a5b",
        what if what.starts_with("verify") => "#3b6ea8",
        _ => "#6b5ca5",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_ratio_and_text_is_escaped() {
        let row = |what: &str, ratio| Row {
            batch: 1,
            what: what.into(),
            median_us: 7.0,
            to_copy: Some(ratio),
            to_decode: None,
        };
        let svg = svg("a < b & \"c\"", &[row("copy", 1.0), row("verify T=4", 2.0)]);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
        let widths: Vec<f64> = svg
            .split("<rect x=")
            .skip(1)
            .map(|bar| bar.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[1] - 2.0 * widths[0]).abs() < 0.2, "{widths:?}");
    }
}
