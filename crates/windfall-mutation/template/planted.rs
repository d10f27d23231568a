//! Planted bugs: only the copy of the source that the mutation suite tests has this module.

use std::sync::OnceLock;

/// The names of all bugs, which the mutation suite fills in.
pub(crate) const NAMES: &[&str] = &[];

/// Returns whether a bug is the one of this process.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted(stringify!($bug))
    };
}

/// Returns the bug that the environment names.
fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("WINDFALL_BUG").ok()?;
        let known = NAMES.iter().find(|known| **known == name);
        Some(known.unwrap_or_else(|| panic!("there is no bug called {name}")))
    })
}

/// Returns whether this bug is planted. In a build of the models it is planted only within a scenario, so that the
/// initial state of the scenario is sound.
pub fn is_planted(bug: &str) -> bool {
    #[cfg(feature = "model")]
    if !crate::sync::model::is_scenario() {
        return false;
    }
    chosen() == Some(bug)
}
