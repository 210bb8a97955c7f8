//! Quantizations in names of files.

/// Quantization in a file's name: the last piece that looks like one.
pub(crate) fn label(name: &str) -> Option<String> {
    let name = name.to_ascii_uppercase();
    let is_digit = |s: &str| s.starts_with(|c: char| c.is_ascii_digit());
    let is_quant = |s: &str| {
        let bits = s.trim_start_matches(['I', 'T']).strip_prefix('Q').is_some_and(is_digit);
        bits || ["F16", "F32", "BF16", "FP16", "FP32"].contains(&s)
            || s.starts_with("MXFP4")
            || s.starts_with("NVFP4")
    };
    let starts = |piece: &str| -> Option<usize> {
        let after_mark = piece.match_indices('_').map(|(i, _)| i + 1);
        std::iter::once(0).chain(after_mark).find(|&i| is_quant(&piece[i..]))
    };
    let piece = name.rsplit(['-', '.']).find(|piece| starts(piece).is_some())?;
    let quant = match &piece[starts(piece)?..] {
        "FP16" => "F16",
        "FP32" => "F32",
        other => other,
    };
    let dynamic = name.split(['-', '.', '_']).any(|p| p == "UD");
    Some(if dynamic { format!("UD-{quant}") } else { quant.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_real_names() {
        // Real names from the hub.
        for (name, want) in [
            ("Qwen3-0.6B-Q8_0", "Q8_0"),
            ("qwen2.5-0.5b-instruct-q4_k_m", "Q4_K_M"),
            ("llama-2-7b-chat.Q4_K_M", "Q4_K_M"),
            ("Llama-3.2-1B-Instruct-IQ4_XS", "IQ4_XS"),
            ("Llama-3.2-1B-Instruct-Q4_0_4_8", "Q4_0_4_8"),
            ("Phi-3-mini-4k-instruct-q4", "Q4"),
            ("Phi-3-mini-4k-instruct-fp16", "F16"),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("gpt-oss-20b-mxfp4", "MXFP4"),
            ("gpt-oss-120b-MXFP4_MOE", "MXFP4_MOE"),
            ("SmolLM3-3B-bf16", "BF16"),
            ("bitnet-TQ1_0", "TQ1_0"),
            ("Mistral-7B-IQ2_XXS", "IQ2_XXS"),
            ("Qwen3-8B-NVFP4", "NVFP4"),
            ("stories_q4_k_m", "Q4_K_M"),
        ] {
            assert_eq!(label(name).as_deref(), Some(want), "{name}");
        }
        for name in ["model", "qwen2.5-coder", "stories260K", "Qwen-7B", "", "-", "_"] {
            assert_eq!(label(name), None, "{name}");
        }
    }
}
