//! The machine that a number was measured on.
//!
//! **Purpose.** Processor, memory, kernel and file system, for every report: numbers cannot be compared without them.
//!
//! **Invariants.** A description that cannot be determined is "unknown", and an amount of memory then 0 (test:
//! `what_cannot_be_determined_is_unknown`). Nothing is read that identifies the machine or its user: of the options of
//! a mount those with a value, which may be a path, an address or a name, are left out unless they concern speed (test:
//! `mount_options_with_paths_and_names_are_left_out`).

use std::{fs, path::Path, thread};

use serde::{Deserialize, Serialize};

use crate::units;

/// A machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The model name of the processor.
    pub processor: String,
    /// The number of threads that can run in parallel; 1 if it cannot be determined.
    pub cores: usize,
    /// The memory in bytes.
    pub memory: u64,
    /// The kernel.
    pub kernel: String,
    /// The file system of the database, with those of its mount options that identify nothing.
    pub file_system: String,
    /// Whether the program was built with optimisation.
    pub optimised: bool,
}

impl Machine {
    /// Describes this machine, with the file system of a folder.
    pub fn of(folder: &Path) -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease");
        Self {
            processor: known("processor", field("/proc/cpuinfo", "model name")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory: kib("/proc/meminfo", "MemTotal"),
            kernel: known("kernel", release.ok().map(|release| format!("Linux {}", release.trim()))),
            file_system: known("file system", file_system(folder)),
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

/// Returns the description, or that `what` is unknown.
fn known(what: &str, description: Option<String>) -> String {
    description.unwrap_or_else(|| format!("unknown {what}"))
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
    above.max_by_key(|m| m[1].len()).map(|m| format!("{} ({})", m[2], public_options(m[3])))
}

/// Mount options with a value that concerns speed.
const WITH_VALUE: [&str; 10] =
    ["allocsize", "barrier", "commit", "compress", "data", "huge", "logbsize", "logbufs", "size", "stripe"];

/// Returns the mount options without those that may identify the machine or a user.
fn public_options(options: &str) -> String {
    let is_public = |option: &&str| option.split_once('=').is_none_or(|(name, _)| WITH_VALUE.contains(&name));
    options.split(',').filter(is_public).collect::<Vec<_>>().join(",")
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
    fn what_cannot_be_determined_is_unknown() {
        assert_eq!(known("processor", field("/proc/none", "model name")), "unknown processor");
        assert_eq!(known("kernel", field("/proc/self/status", "no such name")), "unknown kernel");
        assert_eq!(Machine::of(Path::new("/proc/none")).file_system, "unknown file system");
        // A missing file, a missing line, a line without a number.
        assert_eq!(kib("/proc/none", "VmRSS"), 0);
        assert_eq!(["no such name", "Name"].map(|name| kib("/proc/self/status", name)), [0; 2]);
    }

    #[test]
    fn mount_options_with_paths_and_names_are_left_out() {
        assert_eq!(public_options("rw,relatime"), "rw,relatime");
        assert_eq!(
            public_options(
                "rw,resuid=1000,data=ordered,upperdir=/home/ann/x,addr=10.0.0.7,username=ann,commit=30"
            ),
            "rw,data=ordered,commit=30"
        );
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
