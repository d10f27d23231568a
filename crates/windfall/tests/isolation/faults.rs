//! Tests of the checker: it must find each fault of the reference, and name its consequences. It must also see where a
//! level allows something that a stricter one forbids.

use super::{
    SHAPES,
    case::Case,
    checker::{Kind, check},
    client::Level,
    load::Shape,
    reference::Fault,
};

/// The number of histories in which a fault must be found.
const SEEDS: u64 = 20;
const TRANSACTIONS: usize = 60;

/// The anomalies that a fault causes at these levels, among others.
type Finds = (Fault, &'static [Level], &'static [Shape], &'static [Kind]);

fn finds() -> Vec<Finds> {
    use Kind::{
        AbortedRead, CircularFlow, Duplicate, IntermediateRead, LostAppend, LostUpdate, OtherKey, OwnWrite,
        ReadSkew, Unrepeatable, Vanished, WriteCycle, WriteSkew,
    };
    use Level::{ReadCommitted, ReadUncommitted, RepeatableRead, Serializable, Snapshot};
    const LISTS: &[Shape] = &[Shape::Lists];
    const BOTH: &[Shape] = &SHAPES;
    const WITH_VIEWS: &[Level] = &[ReadCommitted, RepeatableRead, Snapshot];
    const KEPT_VIEWS: &[Level] = &[RepeatableRead, Snapshot];
    vec![
        (Fault::ViewTooNew, KEPT_VIEWS, BOTH, &[ReadSkew, Unrepeatable]),
        (Fault::ViewTooOld, WITH_VIEWS, BOTH, &[ReadSkew]),
        (Fault::ViewRenewed, KEPT_VIEWS, BOTH, &[ReadSkew, Unrepeatable]),
        (Fault::DirtyRead, WITH_VIEWS, BOTH, &[AbortedRead, IntermediateRead, CircularFlow]),
        (Fault::OwnWriteUnseen, WITH_VIEWS, BOTH, &[OwnWrite]),
        (Fault::OtherKeysVersion, WITH_VIEWS, BOTH, &[OtherKey]),
        (Fault::VersionTooOld, WITH_VIEWS, BOTH, &[ReadSkew]),
        (Fault::GapNotLocked, &[Serializable], BOTH, &[ReadSkew, Unrepeatable]),
        (Fault::GapNotLocked, KEPT_VIEWS, BOTH, &[ReadSkew]),
        (Fault::ReadNotLocked, &[Serializable], BOTH, &[ReadSkew, LostUpdate, WriteSkew]),
        (Fault::ReadNotLocked, &[ReadCommitted, RepeatableRead], BOTH, &[Unrepeatable, LostUpdate]),
        (Fault::ReadNotLocked, &[ReadUncommitted], BOTH, &[Unrepeatable, CircularFlow]),
        (Fault::WriteLockReleasedEarly, &Level::ALL, LISTS, &[OwnWrite, WriteCycle]),
        (Fault::WriteLockReleasedEarly, &Level::ALL, BOTH, &[CircularFlow]),
        (Fault::ChangeOverlooked, &[Snapshot], BOTH, &[LostUpdate]),
        (Fault::WriteFromTheView, &[RepeatableRead], LISTS, &[LostAppend]),
        (Fault::AbortedWriteKept, &Level::ALL, BOTH, &[AbortedRead]),
        (Fault::AbortedWriteKept, &Level::ALL[1..], &[Shape::Registers], &[Vanished]),
        (Fault::WriteLost, &Level::ALL, LISTS, &[LostAppend]),
        (Fault::WriteLost, &Level::ALL, &[Shape::Registers], &[LostUpdate]),
        (Fault::TornCommit, WITH_VIEWS, BOTH, &[ReadSkew]),
        (Fault::AppendedTwice, &Level::ALL, LISTS, &[Duplicate]),
    ]
}

#[test]
fn each_fault_is_found_and_named() {
    let finds = finds();
    for fault in Fault::ALL {
        assert!(finds.iter().any(|find| find.0 == fault), "{fault:?} is looked for");
    }
    let mut missed = Vec::new();
    for (fault, levels, shapes, kinds) in finds {
        for level in levels {
            for shape in shapes {
                let mut left = kinds.to_vec();
                for seed in 0..SEEDS {
                    let (shape, level) = (*shape, Some(*level));
                    let case = Case { seed, shape, level, fault: Some(fault), transactions: TRANSACTIONS };
                    let report = check(&case.history());
                    left.retain(|kind| !report.has(*kind));
                    if left.is_empty() {
                        break;
                    }
                }
                if !left.is_empty() {
                    missed.push(format!("{fault:?} at {level} with {shape:?}: {left:?}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "in {SEEDS} histories none of:\n{}", missed.join("\n"));
}

/// The anomalies are those that a stricter level forbids, and none that the level itself forbids. So the reference is
/// not stricter than necessary, and the checker sees the difference.
#[test]
fn each_isolation_level_allows_the_anomalies_of_weaker_levels() {
    use Kind::{
        AbortedRead, CircularFlow, IncompatibleOrder, IntermediateRead, LostUpdate, Phantom, ReadSkew,
        Unrepeatable, Vanished, WriteSkew,
    };
    let all: [(Level, &[Kind]); 5] = [
        (
            Level::ReadUncommitted,
            &[
                IncompatibleOrder,
                Vanished,
                AbortedRead,
                IntermediateRead,
                CircularFlow,
                Unrepeatable,
                LostUpdate,
                ReadSkew,
                WriteSkew,
                Phantom,
            ],
        ),
        (Level::ReadCommitted, &[Unrepeatable, LostUpdate, ReadSkew, WriteSkew, Phantom]),
        (Level::RepeatableRead, &[Unrepeatable, LostUpdate, ReadSkew, WriteSkew, Phantom]),
        (Level::Snapshot, &[WriteSkew, Phantom]),
        (Level::Serializable, &[]),
    ];
    for (level, expected) in all {
        let mut found = Vec::new();
        for seed in 0..60 {
            for shape in SHAPES {
                let case = Case { seed, shape, level: Some(level), fault: None, transactions: TRANSACTIONS };
                let report = check(&case.history().judged_at(Level::Serializable));
                found.extend(report.anomalies.iter().map(|anomaly| anomaly.kind));
            }
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, expected, "{level}");
    }
}
