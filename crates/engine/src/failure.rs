//! [`Failure`]: why a request failed.

use std::time::Duration;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Invalid for this model: the caller's mistake.
    #[error("{0}")]
    Unfit(#[from] Unfit),
    /// Too many running and waiting requests.
    #[error("{0} requests are being served or waiting already; try again in a while")]
    Full(usize),
    /// No slot was free within `queue_timeout`.
    #[error("no slot was free for {} s; try again in a while", .0.as_secs())]
    QueueTimeout(Duration),
    /// Too many bytes of the answer are unread.
    #[error("the answer was not read as fast as it came, and there is no memory left for what is unread")]
    Unread,
    /// No more requests are accepted.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Internal error that the caller cannot fix.
    #[error("{0}")]
    Broken(String),
}

/// Why a sequence is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The prompt has no tokens.
    #[error("the prompt is empty")]
    Empty,
    /// The prompt does not fit the context.
    #[error("the prompt has {prompt} tokens, and the context is {context}")]
    TooLong {
        /// Prompt tokens.
        prompt: usize,
        /// Context tokens.
        context: usize,
    },
    /// The input of the encoder does not fit the KV cache.
    #[error("the encoder's input has {tokens} tokens, and there is room for {room}")]
    LongInput {
        /// Tokens of the encoder's output.
        tokens: usize,
        /// The most that the KV cache holds in addition to a page for the decoder.
        room: usize,
    },
    /// The input of the encoder is missing, or of another kind than the model takes.
    #[error("{0}")]
    Input(&'static str),
    /// The LoRA adapter has been unloaded.
    #[error("the adapter is not loaded any more")]
    NoAdapter,
    /// A token id is outside the vocabulary.
    #[error("the prompt has token {token}, and the model knows those under {vocab}")]
    Unknown {
        /// Token id.
        token: u32,
        /// Vocabulary size.
        vocab: usize,
    },
}
