//! Searching the hub: the request, and how the answer is parsed.

use crate::stand_in::*;
use tallow_hub::{Hub, HubError, Match};

/// Search result, and the requests made, when the hub answers with `status` and `answer`.
fn found(status: u16, answer: &str) -> (Result<Vec<Match>, HubError>, Vec<Ask>) {
    let answer = answer.to_owned();
    let server = Server::start(move |_| say(status, answer.clone()));
    let (_folder, cache) = cache();
    let found = Hub::new(cache, &settings(&server.url)).unwrap().search("qwen 3&x=y");
    (found, server.asked())
}

#[test]
fn models_are_found_by_their_names() {
    let (found, asked) = found(
        200,
        r#"[{"id": "Qwen/Qwen3-4B-GGUF", "downloads": 12345, "likes": 1}, {"id": "../../etc"}, {"id": "old"}]"#,
    );
    let found: Vec<_> = found.unwrap().into_iter().map(|m| (m.repo.to_string(), m.downloads)).collect();
    assert_eq!(found, [("Qwen/Qwen3-4B-GGUF".to_owned(), 12345), ("old".to_owned(), 0)]);
    let [ask] = &asked[..] else { panic!("{asked:?}") };
    let want = "/api/models?search=qwen%203%26x%3Dy&filter=gguf&sort=downloads&direction=-1&limit=20";
    assert_eq!((ask.method.as_str(), ask.path.as_str()), ("GET", want));
}

#[test]
fn an_answer_that_is_no_list_is_refused() {
    for (status, answer) in
        [(200, "no JSON"), (200, "{}"), (200, r#"[{"downloads": 1}]"#), (404, ""), (503, ""), (401, "")]
    {
        let (found, asked) = found(status, answer);
        let why = found.unwrap_err().to_string();
        assert!(why.starts_with("the answer about the search cannot be used: "), "{why}");
        // A search is not retried.
        assert_eq!(asked.len(), 1);
    }
}
