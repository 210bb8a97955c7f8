//! The body of a chat request, of each protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let _ = tallow_server::parse_chat_request(body);
    let _ = tallow_server::parse_completion_request(body);
    let _ = tallow_server::parse_message_request(body);
    let _ = tallow_server::parse_ollama_chat(body);
    let _ = tallow_server::parse_ollama_generate(body);
    let _ = tallow_server::parse_response_request(body);
});
