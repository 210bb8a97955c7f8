//! What is to happen on a machine, by a file that a test writes while a program runs on it: calls that fail or take long, memory
//! that others have.

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

/// A file of [`Order`]s, one a line. It is read at each call, and may be missing.
pub(super) struct Script(PathBuf);

/// An event that lasts as long as the file has its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `fail cuLaunchKernel 700`: all calls of a function return this.
    Fail { function: String, code: c_int },
    /// `slow cuLaunchKernel 100`: all calls of a function take so many milliseconds longer.
    Slow { function: String, time: Duration },
    /// `take 1048576`: other programs have so many bytes of each device.
    Take(u64),
    /// `largest 65536`: memory is in pieces, and no free one has more bytes.
    Largest(u64),
    /// `fill`: other programs have taken what was free when this was first seen.
    Fill,
}

impl Script {
    /// The one that `MOCK_CUDA_SCRIPT` names.
    pub(super) fn of_environment() -> Option<Script> {
        Some(Script(std::env::var_os("MOCK_CUDA_SCRIPT")?.into()))
    }

    /// The orders of now.
    pub(super) fn orders(&self) -> Vec<Order> {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().filter_map(Order::parse).collect()
    }
}

impl Order {
    /// `None` for lines that are no orders, or not yet written to their end.
    fn parse(line: &str) -> Option<Order> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["fail", function, code] => {
                Some(Order::Fail { function: function.into(), code: code.parse().ok()? })
            }
            ["slow", function, milliseconds] => {
                let time = Duration::from_millis(milliseconds.parse().ok()?);
                Some(Order::Slow { function: function.into(), time })
            }
            ["take", bytes] => bytes.parse().ok().map(Order::Take),
            ["largest", bytes] => bytes.parse().ok().map(Order::Largest),
            ["fill"] => Some(Order::Fill),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_orders() {
        let fail = Order::Fail { function: "cuLaunchKernel".into(), code: 700 };
        assert_eq!(Order::parse("fail cuLaunchKernel 700"), Some(fail));
        let slow = Order::Slow { function: "cuInit".into(), time: Duration::from_millis(5) };
        assert_eq!(Order::parse("  slow cuInit 5"), Some(slow));
        assert_eq!(
            ["take 4096", "fill", "largest 8"].map(Order::parse),
            [Order::Take(4096), Order::Fill, Order::Largest(8)].map(Some)
        );
        assert_eq!(["", "take", "take x", "fail cuInit"].map(Order::parse), [None, None, None, None]);
    }
}
