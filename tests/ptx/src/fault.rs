//! Errors: PTX that is not understood, launches that are refused, and undefined behaviour in a kernel.

use std::fmt;

/// An error in text that is no kernel of ours, or in what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not what we ship.
    #[error("line {line} of the PTX: {what}")]
    Parse {
        /// The line, from 1.
        line: u32,
        /// The problem.
        what: String,
    },
    /// No kernel of this name.
    #[error("the module has no kernel called {0}")]
    NoKernel(String),
    /// A launch that the kernel cannot have.
    #[error("a launch of {kernel}: {what}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Why not.
        what: String,
    },
    /// Undefined behaviour of the kernel.
    #[error(transparent)]
    Fault(Box<Fault>),
    /// A transfer that leaves its allocation.
    #[error("a transfer: {0}")]
    Transfer(Trouble),
}

impl Error {
    pub(crate) fn parse(line: u32, what: impl Into<String>) -> Error {
        Error::Parse { line, what: what.into() }
    }
}

/// Undefined behaviour of a kernel, and where it happened.
#[derive(Debug, thiserror::Error)]
pub struct Fault {
    /// The kernel.
    pub kernel: String,
    /// The instruction's line in the PTX.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// The CTA.
    pub cta: [u32; 3],
    /// The first thread concerned, by its number in the CTA.
    pub thread: usize,
    /// The undefined behaviour.
    pub trouble: Trouble,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kernel, line, text, cta: [x, y, z], thread, trouble } = self;
        write!(f, "{kernel}, CTA ({x}, {y}, {z}), thread {thread}: {trouble}\n  line {line}: {text}")
    }
}

/// Undefined behaviour that the interpreter detects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum Trouble {
    #[error("there is no memory at {address:#x}")]
    NoMemory { address: u64 },
    #[error("an access ends {past} bytes past memory of {size}")]
    OutOfBounds { size: usize, past: u64 },
    #[error("an access of {size} bytes at {address:#x} is not aligned")]
    Misaligned { address: u64, size: usize },
    #[error("{what} is read that nobody wrote, at byte {at}")]
    Unwritten { what: &'static str, at: usize },
    #[error("a register is read that was not written")]
    UnwrittenRegister,
    #[error("it {does} what CTA or warp number {other} {did}, and nothing orders the two")]
    Race { does: &'static str, did: &'static str, other: u32 },
    #[error("it waits for lanes {missing:#010x} of its warp, which do not come")]
    Divergent { missing: u32 },
    #[error("it reads from lane {lane}, which takes no part")]
    AbsentLane { lane: usize },
    #[error("it takes part in what names other lanes ({members:#010x})")]
    NotMember { members: u32 },
    #[error("it writes to its parameters")]
    ReadOnly,
    #[error("it gave up (trap)")]
    Trap,
    #[error("it has not ended after {0} instructions")]
    Endless(u64),
}
