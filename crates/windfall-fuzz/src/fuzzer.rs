//! The fuzzer: one libFuzzer binary for all targets, which `scripts/fuzz.sh` builds and runs.
//!
//! **Purpose.** `WINDFALL_FUZZ_TARGET` selects the target, once; `list` prints the names of all targets. The binary
//! writes the target's seeds into the folder that `WINDFALL_FUZZ_SEEDS` names, as its initial corpus.
#![no_main]

use std::{env, fs, path::PathBuf, process, sync::OnceLock};

use libfuzzer_sys::fuzz_target;
use windfall_fuzz::{Target, target, targets};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = env::var("WINDFALL_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            if name != "list" {
                eprintln!("WINDFALL_FUZZ_TARGET is {name:?}: it should be `list` or one of these:");
            }
            targets().for_each(|target| println!("{}", target.name));
            process::exit(i32::from(name != "list"));
        })
    })
}

fn write_seeds() {
    let target = chosen();
    let Some(folder) = env::var_os("WINDFALL_FUZZ_SEEDS").map(PathBuf::from) else { return };
    for (n, seed) in (target.seeds)().iter().enumerate() {
        let path = folder.join(format!("seed-{n:03}"));
        if let Err(error) = fs::write(&path, seed) {
            eprintln!("{}: {error}", path.display());
            process::exit(1);
        }
    }
}

fuzz_target!(init: write_seeds(), |data: &[u8]| (chosen().run)(data));
