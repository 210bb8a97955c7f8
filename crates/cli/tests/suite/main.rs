//! The program as its users run it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod chat;
mod cmdline;
mod commands;
mod common;
mod converting;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod cuda;
mod embed;
mod imatrix;
mod loading;
mod logs;
mod memory;
mod packing;
mod parity;
mod parsing;
mod receipts;
mod run;
mod schemas;
mod serving;
mod several;
mod speech;
mod structured;
