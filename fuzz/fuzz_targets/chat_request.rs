//! The body of a chat request.
#![no_main]

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let _ = tallow_server::parse_chat_request(body);
    let _ = tallow_server::parse_completion_request(body);
});
