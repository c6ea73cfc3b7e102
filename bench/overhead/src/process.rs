//! What a process has used: CPU from `/proc/PID/stat`, memory from `/proc/PID/status`.

/// What Linux counts CPU time of processes in, whatever the kernel's own ticks are.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds and memory of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// User and system time, seconds.
    pub(crate) cpu_s: f64,
    /// Resident memory, MiB.
    pub(crate) resident_mib: f64,
}

impl Usage {
    /// Now; zero of a process that is gone.
    pub(crate) fn of(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before the bracket may hold spaces. After it: state is field 3, utime 14, stime 15.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks =
            |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
        Self { cpu_s: (ticks(14) + ticks(15)) / TICKS_PER_SECOND, resident_mib: kib.unwrap_or(0.0) / 1024.0 }
    }

    /// Of each process.
    pub(crate) fn of_all(pids: &[u32]) -> Vec<Self> {
        pids.iter().map(|pid| Self::of(*pid)).collect()
    }

    /// CPU since `before`, memory as it is now.
    pub(crate) fn since(self, before: &Self) -> Self {
        Self { cpu_s: self.cpu_s - before.cpu_s, resident_mib: self.resident_mib }
    }
}
