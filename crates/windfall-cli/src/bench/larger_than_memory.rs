//! `bench larger-than-memory`: a database several times larger than the pool.
//!
//! **Purpose.** Random reads, and reads and updates half and half, compared with redb with a cache of the same size;
//! and no client ever writes out a dirty page to get a frame.
//!
//! **Method.** The engines alternate. An update is a separate commit that is not synced, in both. redb always reads
//! through the kernel's page cache, which adds all free memory to its cache, so the compared databases of Windfall do
//! so, too. The cost of a miss depends on the page size, so redb is compared with our default page size, four times
//! redb's, and with redb's. The rates with direct I/O, our default, are reported as facts.

use std::time::Duration;

use windfall_measure::{Random, median};

use super::{
    fixture::{self, MB},
    harness::{Bench, Bound, rate},
    rows::{self, Store},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::Result,
};

/// Returns calls per second, with `updates` per cent of updates.
fn calls(store: &dyn Store, rows: u64, updates: u64, time: Duration, seed: u64) -> Result<f64> {
    let mut random = Random::new(seed, updates);
    rate(time, || {
        let key = random.below(rows).to_be_bytes();
        if random.below(100) < updates {
            return store.update(key, &[random.bits() as u8; rows::VALUE]);
        }
        std::hint::black_box(store.read(key)?);
        Ok(())
    })
}

/// One of the Windfall databases that are compared.
struct Ours {
    name: &'static str,
    direct: bool,
    page_size: Option<usize>,
}

const OURS: [Ours; 3] = [
    Ours { name: "windfall through the page cache", direct: false, page_size: None },
    Ours {
        name: "windfall through the page cache with redb's page size",
        direct: false,
        page_size: Some(4096),
    },
    Ours { name: "windfall past the page cache", direct: true, page_size: None },
];

/// Runs the benchmark.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let rows = bench.size(20_000_000, 100_000);
    // A row takes about 130 bytes in a page.
    let pool = (rows * 130 / 4).max(4 * MB);
    let ours = OURS.iter().map(|ours| load(bench, rows, pool, ours)).collect::<Result<Vec<_>>>()?;
    #[cfg(feature = "peers")]
    let redb = {
        bench.say("loading redb");
        super::peers::Redb::load(&bench.database("redb"), rows, pool)?
    };
    let mut stores: Vec<(&str, &dyn Store)> = Vec::new();
    stores.extend(OURS.iter().zip(&ours).map(|(ours, (_, table))| (ours.name, table as &dyn Store)));
    #[cfg(feature = "peers")]
    stores.push(("redb", &redb));
    bench.fact("pool, bytes", pool);

    let (turns, time) = bench.size((5, Duration::from_secs(10)), (2, Duration::from_millis(100)));
    let client_writes = engine::data_writes_of_this_thread();
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
        for (n, page_size) in ["our-page-size", "redb-page-size"].into_iter().enumerate() {
            let claim = format!("{id}-through-page-cache-at-{page_size}-over-redb");
            match rates.get(OURS.len()) {
                Some(redb) => bench.claim(claim, median(&rates[n]) / median(redb), Bound::AtLeast(1.0)),
                None => bench.missing(&claim, "built without the feature `peers`"),
            }
        }
    }
    let client_writes = engine::data_writes_of_this_thread() - client_writes;
    bench.claim("dirty-pages-written-by-clients", client_writes as f64, Bound::AtMost(0.0));
    ours.into_iter().try_for_each(|(db, _)| fixture::close(db))
}

/// Creates and fills a Windfall database.
fn load(bench: &Bench, rows: u64, pool: u64, ours: &Ours) -> Result<(Database, Table)> {
    let &Ours { name, direct, page_size } = ours;
    bench.say(&format!("loading {name}"));
    let setup = Setup {
        direct: Some(direct),
        page_size,
        ..Setup::with_pool(pool).commit(Commit::Lazy).log(1024 * MB)
    };
    let db = setup.open(&bench.database(name))?;
    let table = rows::fill(&db, rows)?;
    engine::set_commit(&db, Commit::Write);
    Ok((db, table))
}
