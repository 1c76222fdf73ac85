//! The fake browser itself is tested: a fault that does not do what it says would make every test built on it lie.
//!
//! One binary for all, because they share the way a browser is started; `protocol` holds what works, `faults` what is
//! switched on at start, `requests` what is asked for over CDP.

mod faults;
mod protocol;
mod requests;
mod support;
