//! The hub's client against a hub that misbehaves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod cache;
mod faults;
mod pieces;
mod processes;
mod pull;
mod search;
mod stand_in;
