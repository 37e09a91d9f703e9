//! Memory of a run.

/// Bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Weights of linear layers.
    pub weights: usize,
    /// Keys and values of the full-attention layers, at capacity.
    pub kv: usize,
    /// Recurrent and convolution states with their logs.
    pub states: usize,
    /// Keys and values of the drafter's head, at capacity.
    pub drafter: usize,
    /// Most that the process has had resident, where the system tells.
    pub peak: Option<usize>,
}

/// The most memory that this process has had resident; told by Linux alone.
pub fn peak() -> Option<usize> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// `VmHWM` of a `/proc/self/status`, which counts in KiB.
fn peak_of(status: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read() {
        assert_eq!(peak_of("Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t   12345 kB\nVmRSS:\t 1 kB\n"), Some(12345 * 1024));
        for other in ["", "VmHWM:\t12", "VmHWM:\tx kB", "VmRSS:\t1 kB", "VmHWM:\t18446744073709551615 kB"] {
            assert_eq!(peak_of(other), None, "{other}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn it_covers_what_was_touched() {
        let touched = vec![1u8; 32 << 20];
        assert!(peak().unwrap() > touched.len());
    }
}
