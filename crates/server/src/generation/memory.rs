//! [`AnswerMemory`], [`TextClaim`]: the memory that a request's answers take until they are sent.

use std::sync::Arc;

use tallow_engine::handle::Request;

use crate::errors::ApiError;
use crate::generation::params::Generation;
use crate::request_context::RequestContext;
use crate::state::Server;

/// Bytes of one token with its log-probability, up to and including its JSON: measured.
const TOKEN: usize = 512;
/// Bytes of each of its top log-probabilities.
const LIKELY_TOKEN: usize = 320;
/// One answer's log-probabilities may take 1 / `SHARE` of the memory budget.
const SHARE: usize = 4;
/// An answer's text is accounted in steps of this many bytes.
const STEP: usize = 64 << 10;

/// Memory of a job's requests.
pub(crate) struct AnswerMemory {
    requests: usize,
    prompts: usize,
}

impl AnswerMemory {
    pub(crate) fn of(requests: &[&mut Request]) -> AnswerMemory {
        let prompts = requests.iter().map(|request| request.prompt.len()).sum();
        AnswerMemory { requests: requests.len(), prompts }
    }

    /// Bytes of the requests and their prompts. The engine has copies.
    pub(crate) fn bytes(&self) -> usize {
        self.requests * 2 * size_of::<Request>() + self.prompts * 3 * size_of::<u32>()
    }

    /// Claims memory for the log-probabilities of an answer that is not streamed, which take far more than its text. If
    /// that is too much the request is refused, or its answer is shortened where the request sets no `max_tokens`.
    pub(crate) async fn for_logprobs(
        &self,
        generation: &Generation,
        requests: &mut [&mut Request],
        server: &Server,
        ctx: &RequestContext,
    ) -> Result<(), ApiError> {
        let Some(top) = generation.logprobs.filter(|_| !generation.stream) else { return Ok(()) };
        let bytes_per_token = TOKEN + (top + 1) * LIKELY_TOKEN;
        let room = (server.budget.capacity() / SHARE / bytes_per_token).saturating_sub(self.scored(requests));
        let wanted: usize = requests.iter().map(|request| request.max_new).sum();
        if wanted > room {
            let one = room / requests.len().max(1);
            if generation.max_tokens.is_some() || one == 0 {
                let why = format!(
                    "an answer of {wanted} tokens, each with the log-probabilities of {top} more, takes too much memory as a \
                     whole; there is room for {room}: ask for fewer tokens, n or top_logprobs, or for a stream"
                );
                return Err(ApiError::field("max_tokens", why).code("request_too_large"));
            }
            requests.iter_mut().for_each(|request| request.max_new = request.max_new.min(one));
        }
        ctx.claim.grow((wanted.min(room) + self.scored(requests)) * bytes_per_token).await
    }

    /// Number of prompt tokens that are echoed with log-probabilities.
    fn scored(&self, requests: &[&mut Request]) -> usize {
        let requests = requests.iter();
        requests.filter(|request| request.score_prompt).map(|request| request.prompt.len()).sum()
    }
}

/// Accounts the text of an answer that is kept until its end.
pub(crate) struct TextClaim {
    ctx: Option<Arc<RequestContext>>,
    base: usize,
    text: usize,
    claimed: usize,
}

impl TextClaim {
    /// The claim of a request that has claimed `base` bytes; without a context nothing is accounted.
    pub(crate) fn new(ctx: Option<Arc<RequestContext>>, base: usize) -> TextClaim {
        TextClaim { ctx, base, text: 0, claimed: 0 }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.text += bytes;
        if let Some(ctx) = self.ctx.as_ref().filter(|_| self.text >= self.claimed + STEP) {
            self.claimed = self.text;
            // A growing `String` takes up to twice its length, and so does its JSON.
            ctx.claim.settle(self.base + 4 * self.text);
        }
    }
}
