//! [`Replay`]: launches that a device does again.

use std::fmt;

use crate::Result;

/// Launches recorded by [`Backend::capture`](crate::Backend::capture).
pub struct Replay(Box<dyn Fn() -> Result<()>>);

impl Replay {
    /// A replay that calls `launch`. For backends.
    pub fn new(launch: impl Fn() -> Result<()> + 'static) -> Replay {
        Replay(Box::new(launch))
    }

    /// Launches the recorded ops again, with the same operands, whatever these hold by now.
    pub fn launch(&self) -> Result<()> {
        (self.0)()
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replay")
    }
}
