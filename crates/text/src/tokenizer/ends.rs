//! Tokens that end generation, by name.

/// Names of end tokens. Without a config, an earlier name is more likely to be the file's EOS token.
pub(super) const NAMES: [&str; 27] = [
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<|END_OF_TURN_TOKEN|>",
    "[|endofturn|]",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[e~[",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The ids among `tokens` that end generation, the likeliest EOS token first.
pub(super) fn by_name<'a>(tokens: impl Iterator<Item = (&'a str, u32)>) -> Vec<u32> {
    let rank = |text: &str| NAMES.iter().position(|name| *name == text);
    let mut found: Vec<(usize, u32)> = tokens.filter_map(|(text, id)| Some((rank(text)?, id))).collect();
    found.sort_unstable();
    let has = |name: &str| found.iter().any(|(rank, _)| NAMES[*rank] == name);
    // Models that write several messages in one answer: their `<|end|>` only ends a message.
    let many = (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
    // In vocabularies with this token, `</s>` is text.
    let html = has("<|tool_response>");
    let counts = |name: &str| !(many && name == "<|end|>" || html && name == "</s>");
    found.into_iter().filter(|(rank, _)| counts(NAMES[*rank])).map(|(_, id)| id).collect()
}
