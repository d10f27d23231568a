//! `bench larger-than-memory`: a database several times larger than the pool.
//!
//! **Purpose.** Random reads, and reads and updates half and half, beside redb with a cache of the same size; and no
//! client ever writes a page that was in its way.
//!
//! **Invariants.** The engines take turns. An update is a commit of its own that is not synced, in both. redb always
//! reads through the page cache of the kernel, which adds all free memory to its cache: what is compared with it goes
//! through that, too. The rates past the page cache, which is our default, stand beside.
//!
//! **May touch.** `engine`, `measure`, `peers` where it is built in.

use std::time::Duration;

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound, rate},
    read,
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::Result,
    measure::{Random, median},
};

/// The name of ours as it is by default.
const DIRECT: &str = "windfall past the page cache";

/// Something that can be read and updated by key.
pub trait Store {
    /// The sum of the value of a key.
    fn read(&self, key: [u8; 8]) -> Result<Option<u64>>;
    /// Gives a key another value.
    fn update(&self, key: [u8; 8], value: &[u8]) -> Result<()>;
}

impl Store for Table {
    fn read(&self, key: [u8; 8]) -> Result<Option<u64>> {
        Ok(self.get(&key)?.map(|value| read::sum(&value)))
    }

    fn update(&self, key: [u8; 8], value: &[u8]) -> Result<()> {
        Ok(Table::update(self, &key, value)?)
    }
}

/// Calls per second, so many per cent of them updates.
fn calls(store: &dyn Store, rows: u64, updates: u64, time: Duration, seed: u64) -> Result<f64> {
    let mut random = Random::new(seed, updates);
    rate(time, || {
        let key = random.below(rows).to_be_bytes();
        if random.below(100) < updates {
            return store.update(key, &[random.bits() as u8; read::VALUE]);
        }
        std::hint::black_box(store.read(key)?);
        Ok(())
    })
}

/// Measures.
pub fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(20_000_000, 100_000);
    // A row takes about 130 bytes in a page.
    let pool = (rows * 130 / 4).max(4 * MB);
    let (cached_db, cached) = load(bench, rows, pool, false)?;
    let (direct_db, direct) = load(bench, rows, pool, true)?;
    #[cfg(feature = "peers")]
    let redb = {
        bench.say("loading redb");
        super::peers::Redb::load(&bench.database("redb"), rows, pool)?
    };
    let stores: &[(&str, &dyn Store)] = &[
        ("windfall", &cached),
        (DIRECT, &direct),
        #[cfg(feature = "peers")]
        ("redb", &redb),
    ];
    bench.fact("pool, bytes", pool);

    let (turns, time) = bench.size((5, Duration::from_secs(10)), (2, Duration::from_millis(100)));
    let victims = engine::data_writes_of_this_thread();
    for (id, updates) in [("reads", 0), ("mix", 50)] {
        let mut rates = vec![Vec::new(); stores.len()];
        for turn in 0..turns {
            bench.say(&format!("{id}, turn {} of {turns}", turn + 1));
            for ((_, store), rates) in stores.iter().zip(&mut rates) {
                rates.push(calls(*store, rows, updates, time, turn)?);
            }
        }
        for ((name, _), rates) in stores.iter().zip(&rates) {
            bench.fact(format!("{id}: {name}, calls per second"), median(rates));
        }
        let claim = format!("{id}-over-redb");
        match rates.get(2) {
            Some(redb) => bench.claim(claim, median(&rates[0]) / median(redb), Bound::AtLeast(1.0)),
            None => bench.missing(&claim, "built without the feature `peers`"),
        }
    }
    let victims = engine::data_writes_of_this_thread() - victims;
    bench.claim("dirty-pages-written-by-clients", victims as f64, Bound::AtMost(0.0));
    drop((cached, direct));
    fixture::close(cached_db)?;
    fixture::close(direct_db)
}

/// Makes and fills a database of ours.
fn load(bench: &Bench, rows: u64, pool: u64, direct: bool) -> Result<(Database, Table)> {
    bench.say(&format!("loading, {} the page cache", if direct { "past" } else { "through" }));
    let setup = Setup { direct: Some(direct), ..Setup::with_pool(pool).commit(Commit::Lazy).log(1024 * MB) };
    let db = setup.open(&bench.database(&format!("windfall-{direct}")))?;
    let table = read::fill(&db, rows)?;
    engine::set_commit(&db, Commit::Write);
    Ok((db, table))
}
