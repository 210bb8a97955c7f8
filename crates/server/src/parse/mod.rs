//! From the bytes of a body to typed fields, strictly: what is unknown is an error that names it.

pub(crate) mod base64;
pub(crate) mod fields;
pub(crate) mod json;
pub(crate) mod multipart;
