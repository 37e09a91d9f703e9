//! `strftime` of UTC, for chat templates that write the date.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Formats `seconds` since 1970 in UTC; an unknown directive is the error.
pub(super) fn format_utc(seconds: u64, format: &str) -> Result<String, String> {
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    let weekday = WEEKDAYS[((days + 3) % 7) as usize]; // 1970-01-01 was a Thursday
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);

    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = characters.next();
        let _ = match directive {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            unknown => return Err(unknown.map_or("%".into(), |directive| format!("%{directive}"))),
        };
    }
    Ok(out)
}

/// `(year, month, day)` of a count of days since 1970-01-01, by the 400-year cycle of the Gregorian calendar.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    // Days count from 0000-03-01, so that the leap day ends a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_by_hand() {
        let format = "%Y-%m-%d %H:%M:%S %A %b %y";
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thursday Jan 70"),
            (951_782_399, "2000-02-28 23:59:59 Monday Feb 00"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday Feb 00"),
            (1_735_689_599, "2024-12-31 23:59:59 Tuesday Dec 24"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday Mar 00"),
        ] {
            assert_eq!(format_utc(seconds, format).unwrap(), expected);
        }
    }

    #[test]
    fn twelve_hours_and_literals() {
        assert_eq!(format_utc(0, "%I %p 100%% %e %B %T %F").unwrap(), "12 AM 100%  1 January 00:00:00 1970-01-01");
        assert_eq!(format_utc(13 * 3600, "%I%p").unwrap(), "01PM");
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(format_utc(0, "%Q").unwrap_err(), "%Q");
        assert_eq!(format_utc(0, "at %").unwrap_err(), "%");
    }
}
