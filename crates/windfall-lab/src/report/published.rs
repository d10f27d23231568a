//! What was published, as numbers.
//!
//! **Purpose.** The figures that ours are held against, each with where it stands.
//!
//! **Invariants.** Numbers of others only; nothing in here is measured by this program.
//!
//! **May touch.** `system`.

use crate::system::PolicyName;

/// A published time.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// What that server did at a drop.
    pub policy: PolicyName,
    /// The server.
    pub version: &'static str,
    /// With which setting.
    pub setting: &'static str,
    /// The time.
    pub seconds: f64,
}

const fn of(policy: PolicyName, version: &'static str, setting: &'static str, seconds: f64) -> Published {
    Published { policy, version, setting, seconds }
}

/// Where the figures of X1 stand.
pub const X1_SOURCE: &str = "Percona, \"DROP TABLE and stalls: Lazy Drop Table in Percona Server and the new fixes in \
                             MySQL\", June 2012, with its comments";
/// The longest stalls, in whole seconds: the consecutive seconds of the lowest queries per second.
pub const X1: [Published; 3] = [
    of(PolicyName::LruScan, "MySQL 5.5.15", "longest stall", 6.0),
    of(PolicyName::FlushList, "MySQL 5.5.24", "longest stall", 2.0),
    of(PolicyName::LazyMark, "Percona Server 5.5.24", "longest stall", 1.0),
];

/// Where the figures of X2 stand.
pub const X2_SOURCE: &str = "Percona, \"Drop table performance\", April 2011";
/// Dropping 1,000 tables, by the gigabytes of a pool of 144 that are filled.
pub const X2: [Published; 9] = [
    of(PolicyName::LruScan, "MySQL 5.1.56", "21 GB", 310.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.2", "21 GB", 234.0),
    of(PolicyName::LazyMark, "Percona Server 5.1.56", "21 GB", 95.0),
    of(PolicyName::LruScan, "MySQL 5.1.56", "52 GB", 776.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.2", "52 GB", 548.0),
    of(PolicyName::LazyMark, "Percona Server 5.1.56", "52 GB", 210.0),
    of(PolicyName::LruScan, "MySQL 5.1.56", "104 GB", 1_635.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.2", "104 GB", 1_210.0),
    of(PolicyName::LazyMark, "Percona Server 5.1.56", "104 GB", 466.0),
];

/// Where the figures of X3 stand.
pub const X3_SOURCE: &str = "MySQL bug 56332, August 2010";
/// How many tables were dropped.
pub const X3_TABLES: u32 = 10_000;
/// Dropping all of them.
pub const X3: [Published; 2] = [
    of(PolicyName::LruScan, "MySQL 5.0.91", "10,000 tables", 270.0),
    of(PolicyName::LruScanOnce, "MySQL 5.0.77", "10,000 tables", 135.0),
];
/// How much more often the newer of these versions called the function that walks the pool.
pub const X3_CALLS: f64 = 2.0;

/// Where the figures of X4 stand.
pub const X4_SOURCE: &str = "MySQL bug 69316, June 2013";
/// 100,000 times a table made and dropped, in a pool of 512 MB that nothing fills.
pub const X4: [Published; 6] = [
    of(PolicyName::LruScan, "MySQL 5.1.70", "disk", 261.0),
    of(PolicyName::FlushList, "MySQL 5.5.32", "disk", 257.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.12", "disk", 745.0),
    of(PolicyName::LruScan, "MySQL 5.1.70", "tmpfs", 84.0),
    of(PolicyName::FlushList, "MySQL 5.5.32", "tmpfs", 83.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.12", "tmpfs", 242.0),
];
/// The same of versions that do at a drop what others do, or what no system here does: on disk, on a ramdisk.
pub const X4_ALSO: [(&str, f64, f64); 3] =
    [("4.1.25", 233.0, 66.0), ("5.0.96", 257.0, 80.0), ("5.7.2", 914.0, 246.0)];

/// Where the figure of X5 stands.
pub const X5_SOURCE: &str = "the article on tablespace truncation in MySQL 8.0.23";
/// How many times as long the version before took, at most.
pub const X5_UP_TO: f64 = 251.0;
