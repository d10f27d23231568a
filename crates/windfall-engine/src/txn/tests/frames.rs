//! A buffer pool with all frames in use, and rounds of its cleaner.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{Base, Setup};
use crate::{
    buffer::{Durability, Space},
    ids::{Lsn, PageNo, SpaceId},
    mtr::Mtr,
    page::{Access, PageType},
    sync::{
        Arc, as_another_thread,
        work::{self, Work},
    },
    tablespace,
};

fn base(frames: usize) -> Base {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    Base::open(Setup { frames, ..Setup::simulated(&disk, &env) }).unwrap()
}

fn pages(base: &Base, count: usize, durability: Durability) -> Arc<Space> {
    let space = base.pool.attach(SpaceId(1 << 40), durability);
    for _ in 0..count {
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
    }
    space
}

#[test]
fn a_long_value_that_finds_no_frame_has_changed_nothing() {
    let base = base(64);
    let tree = &base.clustered;
    tree.ensure_root().unwrap();
    let begin = |stamp| {
        let mut mtr = Mtr::begin(&base.pool).unwrap();
        let writer = tree.begin_overflow(&mut mtr, stamp).unwrap();
        mtr.commit().unwrap();
        writer
    };
    let mut writer = begin(77);
    let space = pages(&base, 64, Durability::Temporary);
    let value: Vec<u8> = (0..40_000u32).map(|n| (n / 7) as u8).collect();
    let mut chunks = value.chunks(10_000);
    let mut chunk = chunks.next();
    let mut failures = 0;
    // Fewer and fewer frames are held, until the writer makes progress.
    for held in (50..64).rev() {
        let latches: Vec<_> =
            (1..=held).map_while(|n| base.pool.share(&space, PageNo(n), Access::Point).ok()).collect();
        let mut has_failed = false;
        while let Some(bytes) = chunk {
            if let Err(error) = as_another_thread(|| writer.write(bytes)) {
                assert!(error.to_string().contains("too small"), "{error}");
                has_failed = true;
                break;
            }
            chunk = chunks.next();
        }
        drop(latches);
        base.pool.context().health.check().unwrap();
        if has_failed {
            // The value can only be written again from its beginning.
            failures += 1;
            writer = begin(77 + failures);
            chunks = value.chunks(10_000);
            chunk = chunks.next();
        }
    }
    assert!(failures > 0, "there was always a frame");
}

#[test]
fn a_round_of_the_cleaner_is_bounded() {
    let base = base(10_000);
    pages(&base, 9_000, Durability::Logged);
    base.pool.flush_all().unwrap();
    let round = || {
        let before = work::so_far();
        let more = base.pool.clean_step(Lsn::ZERO).unwrap();
        let occupancy = base.pool.occupancy();
        assert!(occupancy.free <= occupancy.frames, "{occupancy:?}");
        (more, (work::so_far() - before).of(Work::Evicted))
    };
    base.pool.resize(64).unwrap();
    let rounds: Vec<_> = std::iter::from_fn(|| Some(round()).filter(|(more, _)| *more)).take(100).collect();
    assert!((2..100).contains(&rounds.len()), "{} rounds", rounds.len());
    assert!(rounds.iter().all(|(_, evicted)| *evicted <= 5000), "{rounds:?}");
    let occupancy = base.pool.occupancy();
    assert!(occupancy.free <= 64, "{occupancy:?}");
}
