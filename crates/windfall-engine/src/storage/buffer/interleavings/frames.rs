//! The ownership of frames that hold nothing.

use super::*;
use crate::{
    buffer::{arena::Arena, frame::RETIRED, free::FreeList, with_reserved_frames},
    sync::model::{explore, spawn},
};

/// Catches: a head without the count of its changes (the ABA problem); a link that is read after the take.
#[test]
fn a_free_frame_has_one_owner() {
    explore(12_000, &["HeadWithoutCount"], || {
        let shared = Arc::new((Arena::new(4, PAGE_SIZE).unwrap(), FreeList::default()));
        (0..4).for_each(|n| shared.1.push(&shared.0, FrameNo(n)));
        let own = |arena: &Arena, frame: FrameNo| {
            assert!(arena.frame(frame).latch.try_exclusive(), "{frame:?} has two owners");
        };
        let give = |arena: &Arena, list: &FreeList, frame: FrameNo| {
            arena.frame(frame).latch.release_changed();
            list.push(arena, frame);
        };
        let threads = [0, 1].map(|_| {
            let shared = shared.clone();
            spawn(move || {
                let (arena, list) = &*shared;
                let mine: Vec<_> = (0..2).filter_map(|_| list.pop(arena)).collect();
                for frame in &mine {
                    own(arena, *frame);
                }
                // The first one is pushed first: for a moment the list has the same head as before, and a different
                // rest.
                for frame in mine {
                    give(arena, list, frame);
                }
            })
        });
        let (arena, list) = &*shared;
        list.take_all(arena, &mut |frame| {
            own(arena, frame);
            give(arena, list, frame);
        });
        if let Some(frame) = list.pop(arena) {
            own(arena, frame);
            give(arena, list, frame);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let mut all: Vec<_> = core::iter::from_fn(|| list.pop(arena)).map(|frame| frame.0).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    });
}

/// A frame beyond the size comes free while the pool grows beyond it and shrinks again.
///
/// Catches: a frame that is retired without another check of the size; one that is brought back by both threads that
/// see it.
#[test]
fn a_growing_pool_gets_each_retired_frame_once() {
    let prepared = Prepared::new();
    explore(6000, &["RetiredForGood"], move || {
        let smallest = crate::buffer::MIN_FRAMES;
        let base = prepared.open(smallest as u32 - 2);
        let pool = base.pool.clone();
        pool.used.store(smallest as u32, Relaxed);
        let beyond = [smallest as u32 - 2, smallest as u32 - 1].map(FrameNo);
        let threads = beyond.map(|frame| {
            let pool = pool.clone();
            spawn(move || pool.free_empty(frame))
        });
        pool.resize(smallest).unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut free: Vec<_> = core::iter::from_fn(|| pool.free.pop(&pool.arena)).collect();
        free.sort_unstable();
        assert_eq!(free, beyond, "a frame below the size is missing, or there twice");
        assert!(!beyond.iter().any(|frame| pool.arena.frame(*frame).is(RETIRED)));
    });
}

/// A pool shrinks while another thread takes a frame that was never used.
///
/// Catches: a frame that is taken under the old size and is never returned.
#[test]
fn a_shrinking_pool_gets_every_frame_back() {
    let prepared = Prepared::new();
    explore(4000, &["FrameBeyondTheSize"], move || {
        let smallest = crate::buffer::MIN_FRAMES;
        let base = prepared.open(smallest as u32 + 2);
        let pool = base.pool.clone();
        // All frames below the new size are in use elsewhere.
        pool.used.store(smallest as u32, Relaxed);
        let taker = {
            let base = base.clone();
            // This thread may take the last frame, too.
            spawn(move || with_reserved_frames(|| base.read_page(0, PAGES[0]).unwrap()))
        };
        pool.resize(smallest).unwrap();
        // A thread that finds no frame below the size waits for one.
        pool.free_empty(FrameNo(0));
        taker.join().unwrap();
        for _ in 0..4 {
            pool.clean_step(Lsn::ZERO).unwrap();
        }
        for no in (smallest as u32..pool.used.load(Relaxed)).map(FrameNo) {
            let frame = pool.arena.frame(no);
            assert!(frame.is(RETIRED), "{no:?} lies beyond the size and still holds {}", frame.tag());
        }
    });
}
