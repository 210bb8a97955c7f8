//! [`Notice`]: what users are told while a device is chosen and a model is loaded on it.

use std::io::IsTerminal;

use crate::{log, terminal};

/// A notice: shown to users, or written to the log of a server.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The chosen device, and the memory plan on it.
    Taken(String),
    /// Why the model will be slower than it could be.
    Slow(String),
    /// Formats given to weights that were to be quantized.
    Quantized(String),
    /// A preferred device that is passed over, and why.
    PassedOver(String),
    /// Why the CPU is used, where that is expected.
    OnCpu(String),
}

impl Notice {
    /// Shows the notice to users: the chosen device on a terminal only, why the model is slow unless `--quiet` is given,
    /// what is quantized or passed over always.
    pub(crate) fn show(&self) {
        match self {
            Notice::Taken(text) if std::io::stderr().is_terminal() && !log::is_quiet() => {
                terminal::tell(&terminal::dim(text));
            }
            Notice::Taken(text) => tracing::info!("{text}"),
            Notice::OnCpu(text) => tracing::info!("{text}"),
            Notice::Slow(_) if log::is_quiet() => {}
            Notice::Slow(text) | Notice::Quantized(text) | Notice::PassedOver(text) => {
                terminal::tell(&terminal::sanitized(text))
            }
        }
    }

    /// As [`Notice::show`], for commands that report only devices that are passed over.
    pub(crate) fn show_passed_over(&self) {
        if let Notice::PassedOver(_) = self {
            self.show();
        }
    }

    /// Writes it to the log.
    pub(crate) fn log(&self) {
        match self {
            Notice::Taken(text) => tracing::info!("{text}"),
            Notice::OnCpu(text) => tracing::debug!("{text}"),
            Notice::Slow(text) | Notice::Quantized(text) | Notice::PassedOver(text) => {
                tracing::warn!("{text}")
            }
        }
    }
}
