//! Reading back the text that we have written.
//!
//! Its own file because whatever keeps operations, images or records as text needs it. A request is read with a limit on
//! its depth; a client's data then lies deeper in an operation, a page of them or an image than it did in the request.
//! Read with the same limit, a text that was accepted and written could be read by nobody.

use serde::de::DeserializeOwned;

/// Reads a whole text of ours, however deep it is.
pub fn read_text<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    // What was let in was read once already, from outside and with a limit: this is that and a few levels more.
    reader.disable_recursion_limit();
    let read = T::deserialize(&mut reader)?;
    reader.end()?;
    Ok(read)
}
