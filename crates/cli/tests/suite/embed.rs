//! `tallow embed` and `tallow rerank`, and a served encoder.

use crate::common::Home;
use serde_json::Value;
use tallow_support::{golden, image_encoder, json, tensors, text_encoder};

/// A home with an encoder, or a reranker with `labels` labels.
fn home(labels: Option<usize>) -> Home {
    let home = Home::new();
    text_encoder(&home.path().join("tiny"), labels);
    home
}

fn vectors(out: &str) -> Vec<Vec<f32>> {
    out.lines().map(|line| line.split(' ').map(|x| x.parse().unwrap()).collect()).collect()
}

fn length(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn texts_become_vectors_of_length_one() {
    let home = home(None);
    let given = vectors(&home.run(&["embed", "-m", "tiny", "the cat sat", "a dog"]).ok());
    assert_eq!(given.len(), 2);
    assert!(given.iter().all(|x| x.len() == 48 && (length(x) - 1.0).abs() < 1e-5));
    assert_ne!(given[0], given[1]);
    let lines = vectors(&home.run_with(&["embed", "-m", "tiny"], b"the cat sat\na dog\n").ok());
    assert_eq!(lines, given);
    let lines = "the cat sat\n".repeat(600);
    let many = vectors(&home.run_with(&["embed", "-m", "tiny", "-"], lines.as_bytes()).ok());
    assert!(many.len() == 600 && many.iter().all(|x| *x == given[0]));
    let cut = vectors(&home.run(&["embed", "-m", "tiny", "--dimensions", "5", "a dog"]).ok());
    let by = length(&given[1][..5]);
    assert!(cut[0].len() == 5 && cut[0].iter().zip(&given[1]).all(|(a, b)| (a - b / by).abs() < 1e-6));
}

/// Embedding models that are decoders.
#[test]
fn decoders_give_vectors_and_write_no_text() {
    let (home, folder) = (Home::new(), golden("embedders/gemma3"));
    let model = folder.display().to_string();
    let facts = json(&folder.join("golden.json"));
    let texts: Vec<&str> =
        facts["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let arguments = [&["embed", "-m", &model][..], &texts[..]].concat();
    let (got, want) =
        (home.run(&arguments).ok(), tensors(&folder.join("golden.safetensors"))["vectors"].f32());
    let got = vectors(&got).concat();
    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // The program's arithmetic is in int8.
    assert!(got.len() == want.len() && far < 0.02, "off by {far}");
    let shown = home.run(&["show", &model]).ok();
    for line in [
        "family       Gemma 3",
        "gives        vectors of 24 numbers",
        "texts        up to 64 tokens of 264",
        "window 4",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let said = [
        home.run(&["run", &model, "hello"]),
        home.run(&["rerank", "-m", &model, "a", "b"]),
        home.run(&["convert", &model, "out.gguf"]),
    ];
    insta::assert_snapshot!(said.map(|did| did.failed()).concat().replace(&model, "MODEL"));
}

#[test]
fn images_become_vectors_and_are_matched_with_texts() {
    let home = Home::new();
    image_encoder(&home.path().join("clip"));
    let file = golden("frontends/pattern.png").display().to_string();
    let both = vectors(&home.run(&["embed", "-m", "clip", "the cat", "--image", &file]).ok());
    assert!(both.len() == 2 && both.iter().all(|x| x.len() == 24 && (length(x) - 1.0).abs() < 1e-5));
    let image = vectors(&home.run(&["embed", "-m", "clip", "-i", &file]).ok());
    assert_eq!(image, both[1..]);
    let lines = home.run(&["embed", "-m", "clip", "--json", "-i", &file, "the cat"]).ok();
    assert!(lines.lines().last().unwrap().contains("\"tokens\":5"), "{lines}");
    // The probabilities of competing texts sum to one, best first.
    let matched = home.run(&["embed", "-m", "clip", "--match", "-i", &file, "the cat", "a dog", "rug"]).ok();
    let shares: Vec<f32> =
        matched.lines().map(|line| line.split_once("  ").unwrap().0.parse().unwrap()).collect();
    assert!(shares.len() == 3 && shares.windows(2).all(|w| w[0] >= w[1]), "{matched}");
    assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-4);
    let json = home.run(&["embed", "-m", "clip", "--match", "--json", "-i", &file, "the cat", "a dog"]).ok();
    let json: Value = serde_json::from_str(&json).unwrap();
    let cosine: f32 = both[0].iter().zip(&both[1]).map(|(a, b)| a * b).sum();
    let logit = json["logits"][0].as_f64().unwrap() as f32;
    assert!(json["logits"].as_array().unwrap().len() == 2 && (logit / cosine) > 1.0, "{json}");
    let shown = home.run(&["show", "clip"]).ok();
    for line in [
        "family       CLIP",
        "gives        vectors of 24 numbers",
        "texts        up to 16 tokens of 99",
        "images       16 x 16 pixels, in patches of 8 x 8",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn what_cannot_be_done_with_images_is_said() {
    let (texts, both) = (home(None), Home::new());
    image_encoder(&both.path().join("clip"));
    let file = golden("frontends/pattern.png").display().to_string();
    let text = both.path().join("notes.txt");
    std::fs::write(&text, "no picture").unwrap();
    let text = text.display().to_string();
    let said = [
        texts.run(&["embed", "-m", "tiny", "-i", &file]),
        texts.run(&["embed", "-m", "tiny", "--match", "-i", &file, "a cat"]),
        both.run(&["embed", "-m", "clip", "-i", &text]),
        both.run(&["embed", "-m", "clip", "-i", "missing.png"]),
        both.run(&["rerank", "-m", "clip", "a", "b"]),
    ];
    let said = said.map(|did| did.failed()).concat().replace(&file, "FILE").replace(&text, "TEXT");
    insta::assert_snapshot!(said);
    assert!(texts.run(&["show", "tiny"]).ok().contains("gives        vectors of 48 numbers"));
}

#[test]
fn objects_say_which_text_and_how_many_tokens() {
    let home = home(None);
    let out = home.run(&["embed", "-m", "tiny", "--json", "the cat sat", "a dog"]).ok();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |line: &Value| (line["index"].as_u64().unwrap(), line["tokens"].as_u64().unwrap());
    assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), [(0, 5), (1, 4)]);
    assert_eq!(lines[0]["embedding"].as_array().unwrap().len(), 48);
}

#[test]
fn documents_are_sorted() {
    let home = home(Some(1));
    let out = home.run(&["rerank", "-m", "tiny", "cat", "the cat sat", "a dog", "rug . rug ."]).ok();
    let ranked: Vec<(f32, usize)> = out
        .lines()
        .map(|line| {
            let (score, rest) = line.split_once("  ").unwrap();
            (score.parse().unwrap(), rest.split_once("  ").unwrap().0.parse().unwrap())
        })
        .collect();
    assert!(ranked.len() == 3 && ranked.windows(2).all(|w| w[0].0 >= w[1].0), "{out}");
    let top = home.run_with(
        &["rerank", "-m", "tiny", "cat", "-n", "1", "--json"],
        b"the cat sat\na dog\nrug . rug .\n",
    );
    let top: Value = serde_json::from_str(&top.ok()).unwrap();
    assert_eq!(top["index"].as_u64().unwrap() as usize, ranked[0].1);
    assert!((top["relevance_score"].as_f64().unwrap() as f32 - ranked[0].0).abs() < 1e-5);
}

#[test]
fn texts_are_classified() {
    let home = home(Some(3));
    let path = home.path().join("tiny/config.json");
    let mut config = tallow_support::json(&path);
    config["id2label"] = serde_json::json!({ "0": "tale", "1": "news", "2": "poem" });
    std::fs::write(&path, config.to_string()).unwrap();
    let texts = ["the cat sat", "a dog", "rug . rug ."];
    let classify = |more: &[&str]| home.run(&[&["classify", "-m", "tiny"], more, &texts[..]].concat()).ok();
    let objects: Vec<Value> =
        classify(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = classify(&[]);
    assert_eq!((objects.len(), lines.lines().count()), (3, 3));
    for (i, (object, line)) in objects.iter().zip(lines.lines()).enumerate() {
        let scores = object["scores"].as_array().unwrap();
        let labels: Vec<&str> = scores.iter().map(|s| s["label"].as_str().unwrap()).collect();
        assert_eq!((object["index"].as_u64(), &labels[..]), (Some(i as u64), &["tale", "news", "poem"][..]));
        let of = |s: &Value| s["score"].as_f64().unwrap();
        assert!((scores.iter().map(of).sum::<f64>() - 1.0).abs() < 1e-5, "{object}");
        let best = scores.iter().max_by(|a, b| of(a).total_cmp(&of(b))).unwrap();
        assert_eq!(object["label"], best["label"]);
        assert_eq!(
            line,
            format!("{:.6}  {}  {}", of(best) as f32, best["label"].as_str().unwrap(), texts[i])
        );
    }
    let piped = home.run_with(&["classify", "-m", "tiny"], texts.join("\n").as_bytes()).ok();
    assert_eq!(piped, lines);
    let long = "the cat sat on the mat . ".repeat(8);
    assert!(home.run(&["classify", "-m", "tiny", &long]).failed().contains("text 1: the text has 58 tokens"));
    home.run(&["classify", "-m", "tiny", "--truncate", &long]).ok();
    assert!(home.run(&["show", "tiny"]).ok().contains("gives        3 scores for a text (tale, news, poem)"));
}

#[test]
fn refusals_say_what_to_do() {
    let (vectors, ranker, many) = (home(None), home(Some(1)), home(Some(3)));
    let long = "the cat sat on the mat . ".repeat(8);
    let said = [
        vectors.run(&["run", "tiny", "hello"]),
        vectors.run(&["embed", "-m", "demo", "hello"]),
        vectors.run(&["embed", "-m", "tiny", "--dimensions", "49", "hello"]),
        vectors.run(&["embed", "-m", "tiny", "dog", &long]),
        vectors.run(&["rerank", "-m", "tiny", "cat", "dog"]),
        vectors.run(&["serve", "tiny", "--port", "0", "--temperature", "1"]),
        ranker.run(&["embed", "-m", "tiny", "hello"]),
        ranker.run(&["rerank", "-m", "tiny", "cat", "--no-truncate", &long]),
        many.run(&["embed", "-m", "tiny", "hello"]),
        many.run(&["rerank", "-m", "tiny", "cat", "dog"]),
        vectors.run(&["classify", "-m", "tiny", "hello"]),
    ];
    insta::assert_snapshot!(said.map(|did| did.failed()).concat(), @r#"
    error: tiny: text generation with the architecture "BertModel" is not supported: it is an encoder: use `tallow embed`, `tallow rerank` or `tallow classify`, or serve it
    error: demo: embedding with the architecture "llama" is not supported: it generates text: use `tallow run` or `tallow serve`
    error: --dimensions is 49; the model's vectors have 48 numbers
    error: text 2: the text has 58 tokens, and the model takes 40; shorten it, or ask for truncation
    error: tiny: reranking by a model without a head for scores is not supported: it computes embeddings, for `tallow embed`; take a reranker, whose architecture ends in ForSequenceClassification
    error: the model is an encoder and writes no text: --context, --kv and how tokens are chosen are not for it
    error: tiny: computing embeddings by a model with a classification head is not supported: its hidden states are made for that head: use `tallow rerank`, or take an embedding model
    error: document 1: the text has 60 tokens, and the model takes 40; shorten it, or ask for truncation
    error: tiny: computing embeddings by a model with a classification head is not supported: its hidden states are made for that head: use `tallow classify`, or take an embedding model
    error: tiny: reranking by a model that gives 3 scores for a text is not supported: it is a classifier: use `tallow classify`, or take a reranker, which gives one score
    error: tiny: classifying by a model without a classification head is not supported: it computes embeddings, for `tallow embed`; take a model whose architecture ends in ForSequenceClassification
    "#);
    vectors.run(&["embed", "-m", "tiny", "--truncate", &long]).ok();
}

/// The same vectors on a GPU, up to rounding.
#[test]
fn vectors_on_a_gpu() {
    let Some(gpu) = crate::common::gpu() else { return };
    let home = home(None);
    let texts = ["the cat sat", "a dog", "rug . rug ."];
    let of = |device: &str| {
        let flags = ["embed", "-m", "tiny", "--device", device, "--arithmetic", "exact"];
        let mut command = home.command(&[&flags[..], &texts].concat());
        // Drivers keep their shader cache under the home.
        command.env("XDG_CACHE_HOME", home.path());
        vectors(&crate::common::did(command, b"").ok())
    };
    for (a, b) in of(&gpu).iter().zip(of("cpu")) {
        let cosine: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.9999, "{cosine}");
    }
}
