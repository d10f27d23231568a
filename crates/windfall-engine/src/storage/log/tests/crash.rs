//! Crash enumeration of the log: a scripted history, interrupted at each of its disk operations.
//!
//! **Purpose.** Whatever operation a crash hits, and whatever survives of the unsynced data, recovery finds everything
//! that was acknowledged, nothing that was never appended, and no damage; a crash during recovery does not change
//! that.
//!
//! **Invariants.** The history is the same in every run; what survives comes from seeds.

use windfall_sim::{SimulatedDisk, Survive};

use super::*;
/// The work that a history had done when it was interrupted.
#[derive(Clone, Default)]
struct Acknowledged {
    /// Every group that was appended, from the last incarnation's low-water mark on.
    appended: Vec<Group>,
    /// All groups that end at or below this were acknowledged as durable.
    durable: Lsn,
}

fn recover(disk: &Arc<SimulatedDisk>) -> Result<(ControlFile, Vec<Group>, Lsn, Log)> {
    recover_with(disk, OPTIONS)
}

pub(super) fn recover_with(
    disk: &Arc<SimulatedDisk>,
    options: LogOptions,
) -> Result<(ControlFile, Vec<Group>, Lsn, Log)> {
    let health = Health::new();
    let mut control = ControlFile::open(disk.clone(), health.clone())?;
    let mut reader = LogReader::new(disk.clone(), control.control(), control.control().low_water_mark)?;
    let mut groups = Vec::new();
    while let Some((start, end, payload)) = reader.next_group()? {
        groups.push((start, end, payload.to_vec()));
    }
    let end = reader.end();
    let log = Log::open(disk.clone(), Arc::new(SimulatedEnv::new(1)), health, options, &mut control, end)?;
    Ok((control, groups, end, log))
}

/// Two incarnations: the first makes segments and retires some, is closed or not; the second recycles segments.
fn history(disk: &Arc<SimulatedDisk>, acknowledged: &mut Acknowledged, close: bool) -> Result<()> {
    for life in 0..2u8 {
        let (mut control, _, end, log) = recover(disk)?;
        acknowledged.durable = acknowledged.durable.max(end);
        for round in 0..7u8 {
            for n in 0..24u16 {
                let len = if n % 6 == 0 { 2500 } else { 40 + usize::from(n) * 13 };
                let payload = vec![life << 6 ^ round << 2 ^ n as u8; len];
                // The appended bytes may reach the disk even if appending ends in an error.
                let start = log.end();
                acknowledged.appended.push((start, Lsn(start.0 + span(len) as u64), payload.clone()));
                log.begin_group().append(&payload)?;
            }
            if round % 3 == 1 {
                log.write_to(Lsn::MAX)?;
            } else {
                log.sync_to(Lsn::MAX)?;
            }
            acknowledged.durable = acknowledged.durable.max(log.durable());
            if round % 2 == 1 {
                let (low_water_mark, durable) =
                    (acknowledged.appended.iter().rfind(|g| g.1 <= log.durable()), log.durable());
                let low_water_mark = low_water_mark.map_or(Lsn::ZERO, |group| group.0);
                control.update(|control| {
                    (control.low_water_mark, control.durable) = (low_water_mark, durable);
                })?;
                log.raise_low_water_mark(low_water_mark);
                while log.step() == Next::Again {}
            }
        }
        if close {
            let end = log.finish()?;
            acknowledged.durable = end;
            control.update(|control| (control.durable, control.clean) = (end, true))?;
        }
    }
    Ok(())
}

fn made() -> Arc<SimulatedDisk> {
    let disk = Arc::new(SimulatedDisk::new(1));
    let control = Control { uuid: UUID, page_size: 16384, ..Control::default() };
    ControlFile::create(disk.clone(), Health::new(), control).unwrap();
    Arc::new(disk.restart(Survive::Nothing))
}

fn judge(acknowledged: &Acknowledged, control: &Control, groups: &[Group], end: Lsn, context: &str) {
    let from = acknowledged
        .appended
        .iter()
        .position(|g| g.0 == control.low_water_mark)
        .unwrap_or(acknowledged.appended.len());
    let from = if control.low_water_mark == Lsn::ZERO { 0 } else { from };
    let expected = &acknowledged.appended[from..];
    assert!(groups.len() <= expected.len() && groups == &expected[..groups.len()], "{context}: not a prefix");
    assert!(
        end >= acknowledged.durable,
        "{context}: the log ends at {end}, acknowledged was {}",
        acknowledged.durable
    );
    let kept = expected.iter().filter(|group| group.1 <= acknowledged.durable).count();
    assert!(groups.len() >= kept, "{context}: {} of {kept} acknowledged groups", groups.len());
}

#[test]
fn every_operation_may_be_the_last() {
    for close in [false, true] {
        let disk = made();
        history(&disk, &mut Acknowledged::default(), close).unwrap();
        let operations = disk.operations();
        assert!(operations > 60, "{operations} operations are no history");
        for at in 1..=operations {
            let disk = made();
            let mut acknowledged = Acknowledged::default();
            disk.crash_at(at);
            assert!(history(&disk, &mut acknowledged, close).is_err());
            for survive in [
                Survive::Nothing,
                Survive::Everything,
                Survive::Random(at * 3 + 2),
                Survive::Random(at * 3 + 3),
                Survive::Random(at * 3 + 4),
            ] {
                let context = format!("operation {at}, {survive:?}");
                // Recovery itself is sometimes interrupted, before it is allowed to end.
                for again in 1..=at % 4 {
                    let left = Arc::new(disk.restart(survive));
                    left.crash_at(again * 2);
                    let _ = recover(&left);
                    let left = Arc::new(left.restart(Survive::Random(at + again)));
                    let (control, groups, end, _) = recover(&left).expect(&context);
                    judge(&acknowledged, control.control(), &groups, end, &context);
                }
                let left = Arc::new(disk.restart(survive));
                let (control, groups, end, log) = recover(&left).expect(&context);
                judge(&acknowledged, control.control(), &groups, end, &context);
                // And the log continues from there.
                let (start, _) = log.begin_group().append(b"after the crash").unwrap();
                assert_eq!(start, end);
                log.sync_to(Lsn::MAX).unwrap();
                let left = Arc::new(left.restart(Survive::Nothing));
                let (_, now, _, _) = recover(&left).expect(&context);
                assert_eq!((&now[..groups.len()], now.len()), (&groups[..], groups.len() + 1), "{context}");
            }
        }
    }
}

/// The largest segments are four times as large as the first one.
const GROWING: LogOptions = LogOptions { size: 4 << 20, segment: 512 << 10, buffer: 64 << 10 };

/// A log grows and is cut: with a segment ahead or without, with the checkpoint before the cut or after it. Then it
/// continues in the small segment, and perhaps it is cut again.
fn history_with_cuts(disk: &Arc<SimulatedDisk>, acknowledged: &mut Acknowledged, variant: u64) -> Result<()> {
    let (mut control, _, end, log) = recover_with(disk, GROWING)?;
    acknowledged.durable = acknowledged.durable.max(end);
    let is_first = variant & 1 == 1;
    for (round, groups) in [if variant & 2 == 2 { 12u8 } else { 26 }, 3, 12, 1].into_iter().enumerate() {
        for n in 0..groups {
            let payload = vec![(round as u8) << 5 ^ n; 12_000];
            let start = log.end();
            acknowledged.appended.push((start, Lsn(start.0 + span(payload.len()) as u64), payload.clone()));
            log.begin_group().append(&payload)?;
        }
        log.sync_to(Lsn::MAX)?;
        acknowledged.durable = acknowledged.durable.max(log.durable());
        while log.step() == Next::Again {}
        if round == 3 {
            break;
        }
        for step in [is_first, !is_first] {
            if step {
                assert!(log.cut()?, "it could not be cut");
                continue;
            }
            let durable = log.durable();
            control.update(|control| (control.low_water_mark, control.durable) = (durable, durable))?;
            log.raise_low_water_mark(durable);
            while log.step() == Next::Again {}
        }
    }
    Ok(())
}

#[test]
fn every_step_of_a_cut_may_be_the_last() {
    for variant in 0..4 {
        let disk = made();
        history_with_cuts(&disk, &mut Acknowledged::default(), variant).unwrap();
        let sizes = disk.list(Folder::Log).unwrap().into_iter().map(|file| disk.len(file).unwrap().unwrap());
        assert!(sizes.sum::<u64>() <= 640 << 10, "the log was not cut");
        for at in 1..=disk.operations() {
            let disk = made();
            let mut acknowledged = Acknowledged::default();
            disk.crash_at(at);
            assert!(history_with_cuts(&disk, &mut acknowledged, variant).is_err());
            for survive in
                [Survive::Nothing, Survive::Everything, Survive::Random(at), Survive::Random(at + 1)]
            {
                let context = format!("variant {variant}, operation {at}, {survive:?}");
                let left = Arc::new(disk.restart(survive));
                left.crash_at(1 + at % 5);
                let _ = recover_with(&left, GROWING);
                let left = Arc::new(left.restart(Survive::Random(at)));
                let (control, groups, end, log) = recover_with(&left, GROWING).expect(&context);
                judge(&acknowledged, control.control(), &groups, end, &context);
                // The log continues, far enough to fill a segment, and is found again.
                for n in 0..14 {
                    log.begin_group().append(&[n; 12_000]).unwrap();
                }
                log.sync_to(Lsn::MAX).unwrap();
                let left = Arc::new(left.restart(Survive::Nothing));
                let (_, now, _, _) = recover_with(&left, GROWING).expect(&context);
                assert_eq!((&now[..groups.len()], now.len()), (&groups[..], groups.len() + 14), "{context}");
            }
        }
    }
}
