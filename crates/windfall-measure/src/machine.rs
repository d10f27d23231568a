//! The machine that a number was measured on.
//!
//! **Purpose.** Processor, memory, kernel and file system, for every report: numbers cannot be compared without them.
//!
//! **Invariants.** What cannot be determined is "unknown", an amount of memory then 0, and the number of cores 1.
//! Nothing is read that identifies the machine or its user.

use std::{fs, path::Path, thread};

use serde::{Deserialize, Serialize};

use crate::units;

/// A machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The model name of the processor.
    pub processor: String,
    /// The number of threads that can run in parallel.
    pub cores: usize,
    /// The memory in bytes.
    pub memory: u64,
    /// The kernel.
    pub kernel: String,
    /// The file system of the database, with its mount options.
    pub file_system: String,
    /// Whether the program was built with optimisation.
    pub optimised: bool,
}

impl Machine {
    /// Describes this machine, with the file system of a folder.
    pub fn of(folder: &Path) -> Self {
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory: kib("/proc/meminfo", "MemTotal"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown kernel".into(), |k| format!("Linux {}", k.trim())),
            file_system: file_system(folder).unwrap_or_else(|| "unknown file system".into()),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Formats the description as one line.
    pub fn line(&self) -> String {
        let memory = units::bytes(self.memory as f64);
        let build = if self.optimised { "" } else { ", NOT an optimised build" };
        let plural = if self.cores == 1 { "" } else { "s" };
        format!(
            "{}, {} core{plural}, {memory} of memory, {}, {}{build}",
            self.processor, self.cores, self.kernel, self.file_system
        )
    }
}

/// Returns the resident memory of this process, in bytes.
pub fn resident_bytes() -> u64 {
    kib("/proc/self/status", "VmRSS")
}

/// Returns the resident bytes of the largest mapping of this process, if its size is at least `at_least` bytes.
pub fn resident_of_mapping(at_least: u64) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    let number = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok().map(|n: u64| n * 1024)
    };
    let mut size = 0;
    let mut largest = None;
    for line in text.lines() {
        // Each mapping has a line with its size, and a later one with its resident part.
        size = number(line, "Size:").unwrap_or(size);
        let resident = number(line, "Rss:").filter(|_| size >= at_least);
        largest = largest.max(resident.map(|resident| (size, resident)));
    }
    largest.map(|(_, resident)| resident)
}

/// Returns the value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|l| l.split_once(':'));
    lines.find(|(n, _)| n.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn kib(path: &str, name: &str) -> u64 {
    let value = field(path, name).unwrap_or_default();
    value.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Returns the type and options of the mount of a folder: the last of the longest mount points that contain it.
fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>()).filter(|m| m.len() > 3);
    let above = mounts.filter(|m| folder.starts_with(m[1]));
    above.max_by_key(|m| m[1].len()).map(|m| format!("{} ({})", m[2], m[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_of_a_mapping_is_its_touched_part() {
        const SIZE: usize = 64 << 20;
        // Untouched memory of this size gets a mapping of its own.
        let mut memory: Vec<u8> = Vec::with_capacity(SIZE);
        let before = resident_of_mapping(SIZE as u64).unwrap();
        memory.resize(SIZE / 2, 1);
        let grown = resident_of_mapping(SIZE as u64).unwrap() - before;
        let half = SIZE as u64 / 2;
        assert!((half..half + (4 << 20)).contains(&grown), "{grown} of {half}");
        assert_eq!(resident_of_mapping(1 << 50), None);
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::of(Path::new("."));
        assert!(machine.cores > 0 && machine.memory > 0 && resident_bytes() > 0);
        assert!(machine.kernel.starts_with("Linux "), "{}", machine.line());
        // Within a `chroot` the mounts do not name the file system of the root.
        let file_system = machine.file_system.as_str();
        assert!(file_system.contains('(') || file_system == "unknown file system", "{file_system}");
    }
}
