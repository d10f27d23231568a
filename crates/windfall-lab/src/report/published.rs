//! Published figures.
//!
//! **Purpose.** The figures that ours are compared with, each with its source. Nothing here is measured by this
//! program.

use crate::system::PolicyName;

/// A published time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// The drop policy of that server.
    pub policy: PolicyName,
    /// The server.
    pub version: &'static str,
    /// The setting.
    pub setting: &'static str,
    /// The time.
    pub seconds: f64,
}

const fn of(policy: PolicyName, version: &'static str, setting: &'static str, seconds: f64) -> Published {
    Published { policy, version, setting, seconds }
}

/// The source of the figures of X1.
pub(super) const X1_SOURCE: &str = "Percona, \"DROP TABLE and stalls: Lazy Drop Table in Percona Server and the new fixes in \
                             MySQL\", June 2012, with its comments";
/// The longest stalls, in whole seconds: the consecutive seconds of the lowest queries per second.
pub(super) const X1: [Published; 3] = [
    of(PolicyName::LruScan, "MySQL 5.5.15", "longest stall", 6.0),
    of(PolicyName::FlushList, "MySQL 5.5.24", "longest stall", 2.0),
    of(PolicyName::LazyMark, "Percona Server 5.5.24", "longest stall", 1.0),
];

/// The source of the figures of X2.
pub(super) const X2_SOURCE: &str = "Percona, \"Drop table performance\", April 2011";
/// Seconds to drop 1,000 tables, by the filled gigabytes of a pool of 144.
pub(super) const X2: [Published; 9] = [
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

/// The source of the figures of X3.
pub(super) const X3_SOURCE: &str = "MySQL bug 56332, August 2010";
/// The number of dropped tables.
pub(super) const X3_TABLES: u32 = 10_000;
/// Seconds to drop all of them.
pub(super) const X3: [Published; 2] = [
    of(PolicyName::LruScan, "MySQL 5.0.91", "10,000 tables", 270.0),
    of(PolicyName::LruScanOnce, "MySQL 5.0.77", "10,000 tables", 135.0),
];
/// Calls of the function that scans the pool: those of the newer version as a multiple of those of the older one.
pub(super) const X3_CALLS: f64 = 2.0;

/// The source of the figures of X4.
pub(super) const X4_SOURCE: &str = "MySQL bug 69316, June 2013";
/// Seconds for 100,000 loops of create and drop, in a pool of 512 MB that is not filled.
pub(super) const X4: [Published; 6] = [
    of(PolicyName::LruScan, "MySQL 5.1.70", "disk", 261.0),
    of(PolicyName::FlushList, "MySQL 5.5.32", "disk", 257.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.12", "disk", 745.0),
    of(PolicyName::LruScan, "MySQL 5.1.70", "tmpfs", 84.0),
    of(PolicyName::FlushList, "MySQL 5.5.32", "tmpfs", 83.0),
    of(PolicyName::FlushListAhi, "MySQL 5.6.12", "tmpfs", 242.0),
];
/// The published times of versions with a policy that is listed above, or that no system here has: on disk, on a
/// ramdisk.
pub(super) const X4_ALSO: [(&str, f64, f64); 3] =
    [("4.1.25", 233.0, 66.0), ("5.0.96", 257.0, 80.0), ("5.7.2", 914.0, 246.0)];

/// The source of the figure of X5.
pub(super) const X5_SOURCE: &str = "the article on tablespace truncation in MySQL 8.0.23";
/// The maximum time of the previous version as a multiple.
pub(super) const X5_UP_TO: f64 = 251.0;
