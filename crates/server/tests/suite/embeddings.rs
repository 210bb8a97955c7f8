//! `/v1/embeddings`, `/v1/rerank` and `/classify`, on a small encoder.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::client::{ask, post};
use crate::common::{HasAddress, hello, start_server};
use serde_json::{Value, json};
use tallow_core::Arithmetic;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::embedder::{EmbedderInfo, EncoderRunner, PoolingTask, RunningEmbedder, spawn};
use tallow_models::encoder::{Encoder, EncoderModel, Inputs};
use tallow_server::{ServedEncoder, Settings};
use tallow_support::{golden, image_encoder, json, tensors, text_encoder};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";
const CLASSIFY: &str = "/classify";

/// A served encoder.
struct EncoderServer {
    address: SocketAddr,
    handle: RunningEmbedder,
    folder: PathBuf,
    _runtime: Runtime,
    _stop: oneshot::Sender<()>,
}

impl HasAddress for EncoderServer {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EncoderServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn embedder(model: EncoderModel, task: PoolingTask, queue: usize) -> RunningEmbedder {
    let inputs = Inputs::new(&model).unwrap();
    let width = model.spec.head.map_or(model.spec.width(), |head| head.labels);
    let (names, classes) = (vec!["tiny".to_owned(), "alias".to_owned()], model.classes().unwrap());
    let info = || Ok::<_, std::io::Error>(EmbedderInfo { names, inputs, task, width, classes, queue });
    spawn(info, move || {
        let b = Cpu::new(Isa::Scalar, 1).unwrap().with(Arithmetic::Exact);
        let load =
            |model: &EncoderModel| Encoder::load(&b, model, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let (encoder, images) = (load(&model), model.image_encoder.as_deref().map(load));
        Ok(EncoderRunner::new(b, encoder, task, 24).with(images))
    })
    .unwrap()
}

fn serve(labels: Option<usize>, queue: usize) -> EncoderServer {
    serve_folder(|folder| text_encoder(folder, labels), queue)
}

fn serve_folder(make: impl FnOnce(&Path), queue: usize) -> EncoderServer {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tallow-server-{}-{number}", std::process::id()));
    make(&folder);
    let model = EncoderModel::open(&folder).unwrap();
    let task = model.spec.head.map_or(PoolingTask::Embed(model.sentence.pooling), |_| PoolingTask::Classify);
    let handle = embedder(model, task, queue);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = ServedEncoder { handle: handle.clone() };
    runtime.spawn(tallow_server::serve(listener, served, Settings::default(), async { drop(stopped.await) }));
    EncoderServer { address, handle, folder, _runtime: runtime, _stop: stop }
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn length(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// The vectors of an answer, in its order.
fn vectors(server: &EncoderServer, body: Value) -> Vec<Vec<f32>> {
    let reply = post(EMBEDDINGS, body).get(server);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let body = reply.json();
    let data = body["data"].as_array().unwrap();
    for (i, item) in data.iter().enumerate() {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(i)));
    }
    data.iter().map(|item| numbers(&item["embedding"])).collect()
}

#[test]
fn an_answer_has_the_shape_of_openais() {
    let server = serve(None, 8);
    let reply = post(
        EMBEDDINGS,
        json!({"model": "alias", "input": ["the cat sat", "a dog"], "dimensions": 2, "user": "u"}),
    );
    let reply = reply.get(&server);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut body = reply.json();
    for item in body["data"].as_array_mut().unwrap() {
        let vector = numbers(&item["embedding"].take());
        assert_eq!(vector.len(), 2);
        assert!((length(&vector) - 1.0).abs() < 1e-6);
    }
    let want = json!({
        "object": "list",
        "data": [
            { "object": "embedding", "embedding": null, "index": 0 },
            { "object": "embedding", "embedding": null, "index": 1 },
        ],
        "model": "alias",
        "usage": { "prompt_tokens": 9, "total_tokens": 9 },
    });
    assert_eq!(body, want);
}

/// A decoder whose last token is the vector (as Qwen3-Embedding), and one with bidirectional attention and dense layers (as
/// EmbeddingGemma), from text to vectors, by sentence-transformers.
#[test]
fn decoders_that_are_embedding_models() {
    for (name, width) in [("qwen3", 32), ("gemma3", 24)] {
        let from = golden("embedders").join(name);
        let server = serve_folder(|folder| copy(&from, folder), 8);
        let want = tensors(&from.join("golden.safetensors"))["vectors"].f32();
        let texts = json(&from.join("golden.json"))["texts"].clone();
        let near = |got: &[f32], want: &[f32]| {
            assert!(
                got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4),
                "{name}"
            );
        };
        let got = vectors(&server, json!({ "input": texts }));
        near(&got.concat(), &want);
        let alone = vectors(&server, json!({ "input": texts[2] }));
        assert_eq!(alone[0], got[2], "{name}");
        let by = length(&want[..6]);
        let cut = vectors(&server, json!({ "input": texts[0], "dimensions": 6 }));
        near(&cut[0], &want[..6].iter().map(|x| x / by).collect::<Vec<_>>());
        let reply = post("/api/embed", json!({ "model": "tiny", "input": texts })).get(&server).json();
        let ollama: Vec<f32> = reply["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect();
        assert_eq!(ollama.len(), 3 * width);
        near(&ollama, &want);
    }
}

/// Copies a folder with its folders.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => std::fs::write(to, std::fs::read(entry.path()).unwrap()).unwrap(),
        }
    }
}

#[test]
fn texts_tokens_and_lists_of_them_give_the_same() {
    let server = serve(None, 8);
    let one = vectors(&server, json!({"input": "the cat sat"}));
    // [CLS] the cat sat [SEP]
    let ids = [2, 60, 56, 58, 3];
    assert_eq!(vectors(&server, json!({"input": ids})), one);
    assert_eq!(vectors(&server, json!({"input": ["the cat sat"]})), one);
    assert_eq!(vectors(&server, json!({"input": [ids]})), one);
    let many = vectors(&server, json!({"input": ["a dog", "the cat sat", "a dog", "mat, rug"]}));
    assert_eq!((&many[1], &many[0]), (&one[0], &many[2]));
    assert_ne!(many[0], many[1]);
    assert!(many.iter().all(|x| x.len() == 48 && (length(x) - 1.0).abs() < 1e-5));
}

/// Decoding is budgeted by the size in the file's header, not by the size of the file.
#[test]
fn images_that_would_take_all_memory_are_refused() {
    let server = serve_folder(image_encoder, 32);
    let mut file = b"BM".to_vec();
    let whole = |n: u32| n.to_le_bytes();
    let (header, side) = (54u32, 8192u32);
    file.extend(
        [whole(header + 3 * side * side), whole(0), whole(header), whole(40), whole(side), whole(side)]
            .concat(),
    );
    file.extend([1u16.to_le_bytes(), 24u16.to_le_bytes()].concat());
    file.extend([whole(0); 6].concat());
    let url = format!("data:image/bmp;base64,{}", base64(&file));
    let reply = post(EMBEDDINGS, json!({"input": {"image": url}})).get(&server);
    let (message, _, _, code) = reply.error();
    assert_eq!((reply.status, code.as_deref()), (413, Some("request_too_large")), "{message}");
    assert!(message.contains("needs 384 MiB"), "{message}");
}

/// Texts and images in one request, and many clients at once: each gets the same result as alone.
#[test]
fn images_stand_beside_texts() {
    let server = serve_folder(image_encoder, 32);
    let file = std::fs::read(golden("frontends/pattern.png")).unwrap();
    let url = format!("data:image/png;base64,{}", base64(&file));
    let image = vectors(&server, json!({"input": {"image": url}})).remove(0);
    let text = vectors(&server, json!({"input": {"text": "the cat"}})).remove(0);
    assert_eq!(vectors(&server, json!({"input": "the cat"}))[0], text);
    assert!(image.len() == 24 && (length(&image) - 1.0).abs() < 1e-5 && image != text);
    std::thread::scope(|scope| {
        let ask = || {
            let input = json!([{"image": url}, "the cat", {"text": "a dog"}, {"image": url}]);
            let all = vectors(&server, json!({ "input": input }));
            assert_eq!((&all[0], &all[1], &all[3]), (&image, &text, &image));
        };
        (0..6).for_each(|_| drop(scope.spawn(ask)));
    });
    let reply = post(EMBEDDINGS, json!({"input": [{"image": url}, "the cat"]})).get(&server).json();
    // The class row and four patches, and two words between BOS and EOS.
    assert_eq!(reply["usage"]["prompt_tokens"], 9);
    let (message, _, param, _) =
        post(EMBEDDINGS, json!({"input": ["a", {"image": "data:;base64,AAAA"}]})).get(&server).error();
    assert_eq!(param.as_deref(), Some("input[1].image"));
    assert_eq!(message, "input[1].image: it is no PNG, JPEG, WebP, GIF or BMP file");
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let three = |c: &[u8]| {
        let bits = c.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - c.len()));
        let letter = |i: usize| {
            if i <= c.len() { char::from(LETTERS[(bits >> (18 - 6 * i) & 63) as usize]) } else { '=' }
        };
        [0, 1, 2, 3].map(letter)
    };
    bytes.chunks(3).flat_map(three).collect()
}

#[test]
fn numbers_come_as_a_list_or_as_bytes() {
    let server = serve(None, 8);
    let list = &vectors(&server, json!({"input": "dog", "encoding_format": "float"}))[0];
    let coded = post(EMBEDDINGS, json!({"input": "dog", "encoding_format": "base64"})).get(&server).json();
    let coded = coded["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(coded.len(), 256);
    let six = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other}"),
    };
    let bits = coded.bytes().map(|c| u32::from(six(c))).collect::<Vec<_>>();
    let bytes = bits.chunks(4).flat_map(|c| {
        let bits = c.iter().fold(0, |bits, six| bits << 6 | six);
        bits.to_be_bytes()[1..].to_vec()
    });
    let bytes: Vec<u8> = bytes.collect();
    let plain: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(&plain, list);
}

#[test]
fn a_cut_vector_is_the_start_of_the_whole_one() {
    let server = serve(None, 8);
    let whole = &vectors(&server, json!({"input": "dog"}))[0];
    let cut = &vectors(&server, json!({"input": "dog", "dimensions": 7}))[0];
    let by = length(&whole[..7]);
    assert!(cut.iter().zip(whole).all(|(a, b)| (a - b / by).abs() < 1e-6) && cut.len() == 7);
}

#[test]
fn long_texts_are_refused_or_cut() {
    let server = serve(None, 8);
    let long = "the cat sat on the mat . ".repeat(8);
    let (message, _, param, code) = post(EMBEDDINGS, json!({"input": ["dog", long]})).get(&server).error();
    assert_eq!((param.as_deref(), code.as_deref()), (Some("input[1]"), Some("context_length_exceeded")));
    assert!(message.contains("58 tokens, and the model takes 40"), "{message}");
    let cut = vectors(&server, json!({"input": long, "truncate": true}));
    // 38 of its tokens, between [CLS] and [SEP].
    let kept: Vec<&str> = long.split_whitespace().take(38).collect();
    assert_eq!(cut, vectors(&server, json!({"input": kept.join(" ")})));
}

#[test]
fn error_texts() {
    let (server, mut all) = (serve(None, 8), String::new());
    for body in [
        json!({}),
        json!({"input": ""}),
        json!({"input": []}),
        json!({"input": ["a", ""]}),
        json!({"input": [[]]}),
        json!({"input": [1, 96]}),
        json!({"input": [1, -1]}),
        json!({"input": [1, "a"]}),
        json!({"input": {"words": "a"}}),
        json!({"input": [{"text": "a", "image": "data:,"}]}),
        json!({"input": [{"image": "https://example.org/cat.png"}]}),
        json!({"input": [{"image": "data:image/png;base64,!"}]}),
        json!({"input": [{"image": "data:image/png;base64,AAAA"}]}),
        json!({"input": vec![json!({"image": "data:;base64,"}); 65]}),
        json!({"input": vec!["a"; 2049]}),
        json!({"input": "a", "model": "other"}),
        json!({"input": "a", "dimensions": 0}),
        json!({"input": "a", "dimensions": 49}),
        json!({"input": "a", "encoding_format": "hex"}),
        json!({"input": "a", "temperature": 1}),
    ] {
        let (message, kind, param, code) = post(EMBEDDINGS, body).get(&server).error();
        assert_eq!(kind, "invalid_request_error");
        all += &format!("{} {}: {message}\n", param.unwrap_or_default(), code.unwrap_or_default());
    }
    let other = post("/v1/chat/completions", json!({"messages": []})).get(&server);
    all += &format!("{}: {}\n", other.status, other.error().0);
    let other = post(RERANK, json!({"query": "a", "documents": ["b"]})).get(&server);
    all += &format!("{}: {}\n", other.status, other.error().0);
    insta::assert_snapshot!(all, @r#"
    input : input is missing
    input : input is an empty text
    input : input should have from 1 to 2048 texts, and has 0
    input[1] : input[1] is an empty text
    input[0] : input[0]: a text of no tokens has no vector
    input : input: there is no token 96: the model has 96
    input[1] : input[1] should be from 0 to 4294967295, and is -1
    input[0] : input[0] should be text, and is a number
    input.words unknown_field: the field "input.words" is not known
    input[0] : input[0] should have either text or image
    input[0].image : input[0].image should be a URL with the image in it, data:image/…;base64,…; others are not fetched
    input[0].image : input[0].image should be a URL with the image in it, data:image/…;base64,…; others are not fetched
    input[0].image : input[0].image: the model makes vectors of texts alone
    input : input should have 64 images at most, and has 65
    input : input should have from 1 to 2048 texts, and has 2049
    model model_not_found: there is no model "other"; there is tiny, alias
    dimensions : dimensions should be from 1 to 48, and is 0
    dimensions : dimensions should be from 1 to 48, and is 49
    encoding_format : encoding_format should be float or base64
    temperature unknown_field: the field "temperature" is not known
    404: the model of this server generates no text; it has /v1/embeddings, /v1/rerank or /classify
    404: the model of this server computes embeddings and is no reranker; it has /v1/embeddings
    "#);
}

#[test]
fn documents_are_ranked() {
    let server = serve(Some(1), 8);
    let documents = ["the cat sat", "a dog", "rug . rug .", "mat", "a dog"];
    let body = json!({"model": "tiny", "query": "cat", "documents": documents, "return_documents": true});
    let reply = post(RERANK, &body).get(&server);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    assert!(whole["id"].as_str().unwrap().starts_with("rerank-"));
    assert_eq!(whole["model"], "tiny");
    // [CLS] cat [SEP] … [SEP] for each.
    assert_eq!(whole["usage"], json!({"prompt_tokens": 32, "total_tokens": 32}));
    let results = whole["results"].as_array().unwrap();
    let of = |result: &Value| {
        (result["index"].as_u64().unwrap() as usize, result["relevance_score"].as_f64().unwrap())
    };
    let ranked: Vec<(usize, f64)> = results.iter().map(of).collect();
    assert_eq!(ranked.len(), 5);
    assert!(ranked.windows(2).all(|w| w[0].1 >= w[1].1 && (0.0..=1.0).contains(&w[0].1)), "{ranked:?}");
    assert!(ranked.first().unwrap().1 > ranked.last().unwrap().1);
    for (result, (index, _)) in results.iter().zip(&ranked) {
        assert_eq!(result["document"], json!({"text": documents[*index]}));
    }
    // Documents with equal scores keep their order.
    let place = |document: usize| ranked.iter().position(|(index, _)| *index == document).unwrap();
    assert_eq!(place(1) + 1, place(4));
    // The best two, for documents given as objects: the same scores.
    let objects: Vec<Value> = documents.iter().map(|text| json!({"text": text})).collect();
    let top = post(RERANK, json!({"query": "cat", "documents": objects, "top_n": 2})).get(&server).json();
    let top: Vec<(usize, f64)> = top["results"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(top, ranked[..2]);
    // Pairs get the same scores, in their own order.
    let scores = |first: Value, second: Value| -> Vec<f64> {
        let body = json!({"model": "tiny", "text_1": first, "text_2": second});
        let scored = post("/score", body).get(&server).json();
        let data = scored["data"].as_array().unwrap();
        assert!(data.iter().enumerate().all(|(i, one)| one["index"] == i && one["object"] == "score"));
        data.iter().map(|one| one["score"].as_f64().unwrap()).collect()
    };
    let all = scores(json!("cat"), json!(documents));
    assert!(ranked.iter().all(|(index, score)| all[*index] == *score), "{all:?}");
    let pairs = scores(json!(["cat", "dog"]), json!(["mat", "mat"]));
    assert_eq!((pairs[0], pairs.len()), (all[3], 2));
    assert_eq!(scores(json!(["cat"]), json!("mat")), [all[3]]);
    for body in [
        json!({"text_1": "a"}),
        json!({"text_1": ["a", "b"], "text_2": "c"}),
        json!({"text_1": [1], "text_2": "c"}),
    ] {
        assert_eq!(post("/score", &body).get(&server).status, 400, "{body}");
    }
}

#[test]
fn error_texts_of_rerank() {
    let (server, mut all) = (serve(Some(1), 8), String::new());
    let long = "the cat sat on the mat . ".repeat(8);
    for body in [
        json!({"documents": ["a"]}),
        json!({"query": "a"}),
        json!({"query": "a", "documents": []}),
        json!({"query": "a", "documents": [1]}),
        json!({"query": "a", "documents": [{"title": "b"}]}),
        json!({"query": "a", "documents": ["b"], "top_n": 0}),
        json!({"query": "a", "documents": ["b", long], "truncate": false}),
    ] {
        let (message, _, param, code) = post(RERANK, body).get(&server).error();
        all += &format!("{} {}: {message}\n", param.unwrap_or_default(), code.unwrap_or_default());
    }
    assert_eq!(post(RERANK, json!({"query": "a", "documents": ["b", long]})).get(&server).status, 200);
    let other = post(EMBEDDINGS, json!({"input": "a"})).get(&server);
    all += &format!("{}: {}\n", other.status, other.error().0);
    insta::assert_snapshot!(all, @r"
    query : query is missing
    documents : documents is missing
    documents : documents should have from 1 to 2048 texts, and has 0
    documents[0] : documents[0] should be text, and is a number
    documents[0].text : documents[0].text is missing
    top_n : top_n should be from 1 to 2147483647, and is 0
    documents[1] context_length_exceeded: documents[1]: the text has 60 tokens, and the model takes 40; shorten it, or ask for truncation
    404: the model of this server is a reranker and computes no embeddings; it has /v1/rerank
    ");
}

/// The vLLM API: labels and probabilities of all classes, in the order of the texts.
#[test]
fn texts_are_classified() {
    let named = |folder: &Path| {
        text_encoder(folder, Some(3));
        let path = folder.join("config.json");
        let mut config = tallow_support::json(&path);
        config["id2label"] = json!({ "0": "tale", "1": "news", "2": "poem" });
        std::fs::write(path, config.to_string()).unwrap();
    };
    let server = serve_folder(named, 8);
    let mut body =
        post(CLASSIFY, json!({"model": "alias", "input": ["the cat sat", "a dog"]})).get(&server).json();
    assert!(body["id"].take().as_str().unwrap().starts_with("classify-"));
    assert!(body["created"].take().as_u64().unwrap() > 1_700_000_000);
    let mut all = Vec::new();
    for item in body["data"].as_array_mut().unwrap() {
        let probs = numbers(&item["probs"].take());
        assert!(probs.len() == 3 && (probs.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{probs:?}");
        let best = (0..3).max_by(|a, b| probs[*a].total_cmp(&probs[*b])).unwrap();
        assert_eq!(item["label"].take(), ["tale", "news", "poem"][best]);
        all.push(probs);
    }
    let want = json!({
        "id": null, "object": "list", "created": null, "model": "alias",
        "data": [
            { "index": 0, "label": null, "probs": null, "num_classes": 3 },
            { "index": 1, "label": null, "probs": null, "num_classes": 3 },
        ],
        "usage": { "prompt_tokens": 9, "total_tokens": 9 },
    });
    assert_eq!(body, want);
    // A single text, or tokens, and raw scores without the activation.
    let one = |body: Value| numbers(&post(CLASSIFY, body).get(&server).json()["data"][0]["probs"]);
    assert_eq!(one(json!({"input": "a dog"})), all[1]);
    let raw = one(json!({"input": "a dog", "use_activation": false}));
    let sum: f32 = raw.iter().map(|x| x.exp()).sum();
    assert!(raw.iter().zip(&all[1]).all(|(x, p)| (x.exp() / sum - p).abs() < 1e-5), "{raw:?} {:?}", all[1]);
    let long = "the cat sat on the mat . ".repeat(8);
    let mut output = String::new();
    for body in [json!({}), json!({"input": ""}), json!({"input": &long}), json!({"input": "a", "top_n": 1})]
    {
        let (message, _, param, code) = post(CLASSIFY, body).get(&server).error();
        output += &format!("{} {}: {message}\n", param.unwrap_or_default(), code.unwrap_or_default());
    }
    assert_eq!(post(CLASSIFY, json!({"input": long, "truncate": true})).get(&server).status, 200);
    for (server, path, body) in [
        (&server, RERANK, json!({"query": "a", "documents": ["b"]})),
        (&server, EMBEDDINGS, json!({"input": "a"})),
        (&serve(None, 8), CLASSIFY, json!({"input": "a"})),
    ] {
        let reply = post(path, body).get(server);
        output += &format!("{}: {}\n", reply.status, reply.error().0);
    }
    insta::assert_snapshot!(output, @r#"
    input : input is missing
    input : input is an empty text
    input context_length_exceeded: input: the text has 58 tokens, and the model takes 40; shorten it, or ask for truncation
    top_n unknown_field: the field "top_n" is not known
    404: the model of this server is a classifier of 3 labels and no reranker, which gives one score; it has /classify
    404: the model of this server is a classifier and computes no embeddings; it has /classify
    404: the model of this server computes embeddings and classifies nothing; it has /v1/embeddings
    "#);
    // A reranker is a classifier with one label.
    let server = serve(Some(1), 8);
    let body = post(CLASSIFY, json!({"input": "a dog"})).get(&server).json();
    let probs = numbers(&body["data"][0]["probs"]);
    assert!(probs.len() == 1 && probs[0] > 0.0 && probs[0] < 1.0, "{body}");
}

/// Many concurrent clients each get the same result as alone, and every place is given back.
#[test]
fn many_clients_at_once() {
    let server = serve(None, 64);
    let texts: Vec<String> =
        (0..16).map(|i| "the cat sat on a rug ".repeat(1 + i % 5) + ["dog", "mat"][i % 2]).collect();
    let alone: Vec<Vec<f32>> =
        texts.iter().map(|text| vectors(&server, json!({"input": text})).remove(0)).collect();
    let before = server.handle.steps().run.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        for i in 0..texts.len() {
            let (server, texts, alone) = (&server, &texts, &alone);
            s.spawn(move || {
                let some: Vec<usize> = (0..6).map(|j| (i + 3 * j) % 16).collect();
                let body = json!({"input": some.iter().map(|j| &texts[*j]).collect::<Vec<_>>()});
                let got = vectors(server, body);
                some.iter().zip(got).for_each(|(j, got)| assert_eq!(got, alone[*j]));
            });
        }
    });
    let steps = server.handle.steps().run.load(Ordering::Relaxed) - before;
    assert!(steps < 96, "{steps} steps for 96 texts");
    assert_eq!(server.handle.taken(), 0);
    assert_eq!(server.handle.stats().waiting_tokens.load(Ordering::Relaxed), 0);
    let metrics = ask("GET", "/metrics").get(&server).text();
    assert!(metrics.contains("vllm:embedded_texts_total{model_name=\"tiny\",engine=\"0\"} 112"), "{metrics}");
    assert!(metrics.contains("finished_reason=\"stop\"} 32"), "{metrics}");
}

/// The gauges that routers read are there, and a refusal does not count as a failed request.
#[test]
fn metrics_have_the_gauges_that_routers_read_and_count_refusals_apart() {
    let server = serve(None, 0);
    assert_eq!(post(EMBEDDINGS, json!({"input": "a"})).get(&server).status, 429);
    let page = ask("GET", "/metrics").get(&server).text();
    let labels = "{model_name=\"tiny\",engine=\"0\"";
    for line in [
        format!("vllm:num_requests_running{labels}}} 0"),
        format!("vllm:num_requests_waiting{labels}}} 0"),
        format!("vllm:kv_cache_usage_perc{labels}}} 0"),
        format!("vllm:failed_steps_total{labels}}} 0"),
        format!("vllm:request_success_total{labels},finished_reason=\"error\"}} 0"),
        format!("vllm:request_refusals_total{labels},status=\"429\",code=\"queue_full\"}} 1"),
    ] {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
}

#[test]
fn the_small_routes() {
    let server = serve(None, 8);
    for path in ["/health", "/ready", "/version"] {
        assert_eq!(ask("GET", path).get(&server).status, 200, "{path}");
    }
    let models = ask("GET", "/v1/models").get(&server).json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][1]["max_model_len"], 40);
    assert_eq!(ask("GET", "/v1/models/alias").get(&server).status, 200);
}

/// A generative model refuses embedding requests and lists its own endpoints.
#[test]
fn a_writer_makes_no_vectors() {
    let server = start_server(&hello());
    for path in [EMBEDDINGS, RERANK] {
        let reply = post(path, json!({"input": "a"})).get(&server);
        assert_eq!(reply.status, 404);
        assert!(reply.error().0.contains("it has /v1/chat/completions"), "{}", reply.text());
    }
}
