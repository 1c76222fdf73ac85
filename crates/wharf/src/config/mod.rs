//! Configuration: flag > environment > file > default, each value with its origin, all problems at once.
//!
//! - `keys`: the one table of keys: name, flag, variable, default, what it is for.
//! - `layers`: reading the three sources into raw values with origins.
//! - `settings`: raw values checked and turned into what the roles are told.
//! - `consistency`: what values must be to each other and to the role; `timing`: the same for times, each rule with a name.
//!
//! Nothing below the binary reads a file of settings or an environment variable.

mod consistency;
mod keys;
mod layers;
mod settings;
mod timing;

pub use keys::{KEYS, Key, Role};
pub use layers::{Origin, Raw, Sources};
pub use settings::{LogFormat, Settings, StoreUrl, shown};

/// One thing that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(pub String);

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
