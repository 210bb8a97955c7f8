//! Choice of a repository's files. It is the same from the hub's listing and from the cache.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{HubError, Result};
use crate::quant::label;
use crate::repo::RepoName;

/// Default quantizations, most preferred first.
const PREFERRED: &[&str] = &[
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_L",
    "Q4_K_S",
    "MXFP4",
    "MXFP4_MOE",
    "Q4_0",
    "Q4_1",
    "IQ4_XS",
    "IQ4_NL",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_0",
    "Q5_1",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "F32",
];

/// Files in a repository's root, besides weights, that a loader may read.
const BESIDES: &[&str] = &[
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "hf_quant_config.json",
    "merges.txt",
    "modules.json",
    "normalizer.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quant_config.json",
    "quantize_config.json",
    "sentence_bert_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "config.json",
];

const TIKTOKEN: &str = ".tiktoken";

/// Suffixes of pickled or otherwise unsupported weights.
const PICKLES: &[&str] = &[".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"];

const INDEX: &str = "model.safetensors.index.json";

/// Most names listed in an error.
const LISTED: usize = 40;

/// The files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Weights last, so that an interrupted pull does not look complete in the cache.
    pub(crate) files: Vec<String>,
    /// True if it is a GGUF model. Then `files` are its parts, in order.
    pub(crate) gguf: bool,
}

/// A GGUF model: one file, or several if it is split.
#[derive(Debug)]
pub(crate) struct Variant {
    /// Quantization in upper case, if the file's name has one.
    pub(crate) label: Option<String>,
    /// Path that the parts share: without `-00001-of-00002` and `.gguf`.
    pub(crate) stem: String,
    /// Parts present, in order.
    pub(crate) files: Vec<String>,
    /// Number of parts of the complete model.
    pub(crate) parts: usize,
}

impl Variant {
    pub(crate) fn is_whole(&self) -> bool {
        self.files.len() == self.parts
    }

    /// The stem without folders.
    pub(crate) fn name(&self) -> &str {
        self.stem.rsplit('/').next().unwrap_or(&self.stem)
    }
}

/// Picks the files of `repo` to use.
pub(crate) fn pick(repo: &RepoName, files: &[String], quant: Option<&str>) -> Result<Choice> {
    let (variants, safetensors) = (variants(files), safetensors(files));
    match quant {
        None if !safetensors.is_empty() => {
            let besides = files.iter().filter(|f| is_besides(f)).cloned();
            let mut files: Vec<_> = besides.collect();
            files.sort_by_key(|f| f == "config.json");
            files.extend(safetensors);
            Ok(Choice { files, gguf: false })
        }
        _ if !variants.is_empty() => {
            let variant = choose(repo, variants, quant)?;
            if !variant.is_whole() {
                let (have, of) = (variant.files.len(), variant.parts);
                return Err(HubError::MissingPart { repo: repo.clone(), file: variant.stem, have, of });
            }
            Ok(Choice { files: variant.files, gguf: true })
        }
        Some(wanted) if !safetensors.is_empty() => Err(HubError::NoQuant {
            repo: repo.clone(),
            wanted: wanted.to_owned(),
            have: format!("no GGUF files at all, only safetensors: ask for {repo}"),
        }),
        _ => match files.iter().find(|f| PICKLES.iter().any(|ending| f.ends_with(ending))) {
            Some(file) => Err(HubError::Pickle { repo: repo.clone(), file: file.clone() }),
            None => Err(HubError::NoWeights { repo: repo.clone() }),
        },
    }
}

/// True if all weights of a safetensors model are among `files`. `index` is the content of its index file, if there is
/// one.
pub(crate) fn is_whole(files: &[String], index: Option<&[u8]>) -> bool {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let have: BTreeSet<_> = files.iter().map(String::as_str).collect();
    let mut parts = BTreeMap::<_, usize>::new();
    for file in files.iter().filter_map(|f| f.strip_suffix(".safetensors")) {
        if let Some((stem, _, of)) = split_part(file) {
            *parts.entry((stem, of)).or_default() += 1;
        }
    }
    let parts_ok = parts.iter().all(|((_, of), have)| of == have);
    let index_ok = match index.map(serde_json::from_slice::<Index>) {
        Some(Ok(index)) => index.weight_map.values().all(|shard| have.contains(shard.as_str())),
        Some(Err(_)) => false,
        None => !have.contains(INDEX),
    };
    let has_config = ["config.json", "adapter_config.json"].iter().any(|c| have.contains(c));
    has_config && parts_ok && index_ok
}

/// True if the files include a tokenizer that a loader can read. Adapters need none.
pub(crate) fn has_tokenizer(files: &[String]) -> bool {
    const ALONE: [&str; 7] = [
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "tekken.json",
        "tiktoken.model",
        "vocab.txt",
        "adapter_config.json",
    ];
    let has = |name: &str| files.iter().any(|f| f == name);
    ALONE.into_iter().any(has)
        || files.iter().any(|f| !f.contains('/') && f.ends_with(TIKTOKEN))
        || has("vocab.json") && has("merges.txt")
}

/// The safetensors index among `files`.
pub(crate) fn index(files: &[String]) -> Option<&String> {
    files.iter().find(|f| *f == INDEX)
}

/// The GGUF models among `files`, without vision projectors and imatrix files.
pub(crate) fn variants(files: &[String]) -> Vec<Variant> {
    let mut found: BTreeMap<(String, usize), BTreeMap<usize, String>> = BTreeMap::new();
    for file in files {
        let Some((stem, ending)) = file.rsplit_once('.') else { continue };
        let name = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
        if !ending.eq_ignore_ascii_case("gguf") || name.contains("mmproj") || name.contains("imatrix") {
            continue;
        }
        let (stem, part, of) = split_part(stem).unwrap_or((stem, 1, 1));
        found.entry((stem.to_owned(), of)).or_default().insert(part, file.clone());
    }
    let variant = |((stem, parts), files): ((String, usize), BTreeMap<usize, String>)| Variant {
        label: stem.rsplit('/').find_map(label),
        stem,
        files: files.into_values().collect(),
        parts,
    };
    found.into_iter().map(variant).collect()
}

/// A file's name (without `.gguf`), without its part number.
pub(crate) fn stem(name: &str) -> &str {
    split_part(name).map_or(name, |(stem, ..)| stem)
}

/// `x-00002-of-00003` is part 2 of 3 of `x`.
fn split_part(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |s: &str| s.parse().ok().filter(|_| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit()));
    let (part, of) = (number(part)?, number(of)?);
    (1..=of).contains(&part).then_some((name, part, of))
}

fn choose(repo: &RepoName, variants: Vec<Variant>, quant: Option<&str>) -> Result<Variant> {
    let by_label = |l: &str| variants.iter().filter(|v| v.label.as_deref() == Some(l)).collect::<Vec<_>>();
    let matching = match quant {
        Some(wanted) => {
            let as_label = label(wanted).filter(|_| !wanted.contains('/')).unwrap_or_default();
            let by_name = |v: &&Variant| [v.name(), &v.stem].iter().any(|n| n.eq_ignore_ascii_case(wanted));
            let mut tries = [variants.iter().filter(by_name).collect(), by_label(&as_label)].into_iter();
            let dynamic = || by_label(&format!("UD-{as_label}"));
            tries.find(|m| !m.is_empty()).unwrap_or_else(dynamic)
        }
        None if variants.len() == 1 => variants.iter().collect(),
        None => PREFERRED.iter().map(|l| by_label(l)).find(|m| !m.is_empty()).unwrap_or_default(),
    };
    match (&matching[..], quant) {
        (&[one], _) => {
            Ok(Variant { label: one.label.clone(), stem: one.stem.clone(), files: one.files.clone(), ..*one })
        }
        (&[], Some(wanted)) => {
            let have = names(variants.iter().map(|v| v.label.as_deref().unwrap_or(v.name())));
            Err(HubError::NoQuant { repo: repo.clone(), wanted: wanted.to_owned(), have })
        }
        (&[], None) => Err(HubError::Ambiguous {
            repo: repo.clone(),
            have: names(variants.iter().map(|v| v.label.as_deref().unwrap_or(v.name()))),
        }),
        (several, _) => Err(HubError::Ambiguous {
            repo: repo.clone(),
            have: names(several.iter().map(|v| v.stem.as_str())),
        }),
    }
}

/// Joins names for an error.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let all: BTreeSet<_> = all.collect();
    let more = all.len().saturating_sub(LISTED);
    let mut text = all.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

/// True if it is one of the small files of a safetensors model.
fn is_besides(file: &str) -> bool {
    match file.split_once('/') {
        None if file.ends_with(TIKTOKEN) => true,
        None => BESIDES.contains(&file),
        Some(("additional_chat_templates", name)) => name.ends_with(".jinja"),
        // Pooling and dense modules of sentence-transformers: `1_Pooling`, `2_Dense`.
        Some((folder, name)) => is_module(folder) && name == "config.json",
    }
}

fn is_module(folder: &str) -> bool {
    folder.split_once('_').is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The safetensors files to use, with their index. If there is `model.safetensors` or its shards, files with other
/// names are copies of the same weights.
fn safetensors(files: &[String]) -> Vec<String> {
    let stem = |f: &str| f.strip_suffix(".safetensors").filter(|s| !s.contains('/')).map(str::to_owned);
    let usual = |s: &str| s == "model" || split_part(s).is_some_and(|(name, ..)| name == "model");
    let any_usual = files.iter().filter_map(|f| stem(f)).any(|s| usual(&s));
    let is_weight = |f: &&String| match (stem(f), f.split_once('/')) {
        (Some(s), _) => !any_usual || usual(&s),
        (None, Some((folder, name))) => is_module(folder) && name == "model.safetensors",
        _ => false,
    };
    let mut weights: Vec<_> = files.iter().filter(is_weight).cloned().collect();
    if !weights.iter().any(|w| !w.contains('/')) {
        return Vec::new();
    }
    // An unsharded model looks complete once its file is there, so root files come last.
    weights.sort_by_key(|w| (!w.contains('/'), w.clone()));
    index(files).cloned().into_iter().chain(weights).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> RepoName {
        RepoName::parse("org/m").unwrap()
    }

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|s| s.to_string()).collect()
    }

    fn picked(names: &[&str], quant: Option<&str>) -> Vec<String> {
        pick(&repo(), &list(names), quant).unwrap().files
    }

    fn refused(names: &[&str], quant: Option<&str>) -> String {
        pick(&repo(), &list(names), quant).unwrap_err().to_string()
    }

    const MANY: &[&str] =
        &["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf"];

    #[test]
    fn a_quantization_is_found_in_any_case() {
        assert_eq!(picked(MANY, Some("q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(picked(MANY, Some("fp16")), ["m-F16.gguf"]);
        assert_eq!(picked(MANY, Some("M-q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(picked(&["m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf"], Some("q4_k_xl")), ["m-UD-Q4_K_XL.gguf"]);
        assert_eq!(picked(&["m-UD-Q4_K_XL.gguf", "m-Q4_K_XL.gguf"], Some("q4_k_xl")), ["m-Q4_K_XL.gguf"]);
    }

    #[test]
    fn without_one_the_usual_is_taken() {
        assert_eq!(picked(MANY, None), ["m-Q4_K_M.gguf"]);
        assert_eq!(picked(&["m-F16.gguf", "m-Q8_0.gguf", "m-Q2_K.gguf"], None), ["m-Q8_0.gguf"]);
        assert_eq!(picked(&["weights.gguf"], None), ["weights.gguf"]);
        assert_eq!(picked(&["m-IQ1_S.gguf"], None), ["m-IQ1_S.gguf"]);
    }

    #[test]
    fn all_parts_of_a_split_file_are_taken() {
        let parts = ["Q8/m-Q8_0-00002-of-00002.gguf", "Q8/m-Q8_0-00001-of-00002.gguf", "Q4/m-Q4_0.gguf"];
        let want = ["Q8/m-Q8_0-00001-of-00002.gguf", "Q8/m-Q8_0-00002-of-00002.gguf"];
        assert_eq!(picked(&parts, Some("Q8_0")), want);
        assert_eq!(picked(&["BF16/m-00001-of-00001.gguf"], Some("bf16")), ["BF16/m-00001-of-00001.gguf"]);
        insta::assert_snapshot!(refused(&parts[..1], None), @"Q8/m-Q8_0 has 2 parts, but org/m has only 1 of them. Try another quantization");
        // Invalid part numbers are part of the name.
        assert_eq!(picked(&["m-00003-of-00002.gguf"], None), ["m-00003-of-00002.gguf"]);
        assert_eq!(picked(&["m-99999-of-99999-of-.gguf"], None).len(), 1);
    }

    #[test]
    fn what_is_missing_or_ambiguous_is_listed() {
        insta::assert_snapshot!(refused(MANY, Some("Q2_K")), @r#"org/m has no "Q2_K"; it has F16, Q4_K_M, Q8_0"#);
        let two = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"];
        insta::assert_snapshot!(refused(&two, None), @"org/m has several files that would do. Say which, as in org/m:NAME, where NAME is one of a-Q4_K_M, b-Q4_K_M");
        assert_eq!(picked(&two, Some("b-Q4_K_M")), ["b-Q4_K_M.gguf"]);
        assert_eq!(picked(&["x/m-Q4_0.gguf", "y/m-Q4_0.gguf"], Some("y/m-q4_0")), ["y/m-Q4_0.gguf"]);
        insta::assert_snapshot!(refused(&["m-IQ1_S.gguf", "m-Q2_K.gguf"], None), @"org/m has several files that would do. Say which, as in org/m:NAME, where NAME is one of IQ1_S, Q2_K");
        insta::assert_snapshot!(refused(&["model.safetensors"], Some("Q4_0")), @r#"org/m has no "Q4_0"; it has no GGUF files at all, only safetensors: ask for org/m"#);
        let many: Vec<_> = (0..1000).map(|i| format!("m{i}.gguf")).collect();
        assert!(pick(&repo(), &many, None).unwrap_err().to_string().ends_with("and 960 more"));
    }

    #[test]
    fn safetensors_models_come_with_what_a_loader_reads() {
        let names = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
            "additional_chat_templates/tool.jinja",
        ];
        let want = [
            "tokenizer.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
            "additional_chat_templates/tool.jinja",
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(picked(&names, None), want);
        assert_eq!(picked(&["consolidated.safetensors"], None), ["consolidated.safetensors"]);
        assert_eq!(
            picked(&["model.safetensors", "qwen.tiktoken", "tokenization_qwen.py"], None),
            ["qwen.tiktoken", "model.safetensors"]
        );
        assert_eq!(
            picked(&["model.safetensors", "2_Dense/model.safetensors", "2_Dense/config.json"], None),
            ["2_Dense/config.json", "2_Dense/model.safetensors", "model.safetensors"]
        );
        // The original safetensors weights are preferred to GGUF, unless a quantization is requested.
        assert_eq!(picked(&["model.safetensors", "m-Q4_0.gguf"], None), ["model.safetensors"]);
        assert_eq!(picked(&["model.safetensors", "m-Q4_0.gguf"], Some("Q4_0")), ["m-Q4_0.gguf"]);
    }

    #[test]
    fn pickles_are_refused_by_name() {
        insta::assert_snapshot!(refused(&["config.json", "pytorch_model.bin"], None), @"org/m has its weights only as pytorch_model.bin: loading such files can run any program hidden in them, so they are refused. Look for a copy with safetensors or GGUF files");
        insta::assert_snapshot!(refused(&["README.md"], None), @"org/m has neither safetensors nor GGUF files, so there is nothing to load. Check the name");
    }

    #[test]
    fn a_model_is_whole_when_all_its_shards_are_there() {
        let shard = |i| format!("model-0000{i}-of-00002.safetensors");
        let index = br#"{"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"extra.safetensors"}}"#;
        let mut files = vec!["config.json".to_owned(), shard(1)];
        assert!(!is_whole(&files, None));
        files.push(shard(2));
        assert!(is_whole(&files, None));
        assert!(!is_whole(&files, Some(index)));
        assert!(!is_whole(&files, Some(b"{")));
        files.push("extra.safetensors".to_owned());
        assert!(is_whole(&files, Some(index)));
        assert!(!is_whole(&list(&["model.safetensors"]), None), "no config.json");
    }

    proptest::proptest! {
        #[test]
        fn any_names_are_survived(
            names in proptest::collection::vec("[-a-zA-Z0-9_./]{0,12}(-Q4_0|_f16|-0000[0-9]-of-0000[0-9]|\\PC){0,3}(\\.gguf|\\.safetensors|)", 0..8),
            quant in proptest::option::of("\\PC{0,8}|q[0-9]_[0-9k]|ud-q4_0"),
        ) {
            if let Ok(choice) = pick(&repo(), &names, quant.as_deref()) {
                proptest::prop_assert!(!choice.files.is_empty());
                proptest::prop_assert!(choice.files.iter().all(|f| names.contains(f)));
                // The same files are picked again from the cache.
                let again = pick(&repo(), &choice.files, quant.as_deref());
                proptest::prop_assert_eq!(again.unwrap().files, choice.files);
            }
            let _ = is_whole(&names, None);
        }
    }
}
