//! Any program that serves one session over HTTP (seed 000's worker contract).
//!
//! A folder because finding, ports, launching, the running program and the HTTP client are five different kinds of
//! knowledge. The program is given a port in its variable `PORT` and serves there: `GET /health`, `POST /sessions`,
//! `GET` and `DELETE /sessions/<id>`.
//!
//! ```text
//! find.rs     the configured path, or the name in PATH
//! port.rs     ports for programs to bind, each reserved while it may be in use
//! launch.rs   CommandDriver: spawn, whose listener it is, `GET /health`, another port if this one was lost; check
//! running.rs  CommandBrowser: probe, begin, look, finish, end
//! http.rs     one request on one connection, bounded in time and size
//! ```

mod find;
mod http;
mod launch;
mod port;
mod running;

pub use launch::{CommandConfig, CommandDriver};
