//! Download of one file, which resumes where an earlier one ended.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use ureq::http::{Method, header};

use crate::blob::{Blob, CHUNK, PROGRESS, Partial, has_length, incomplete};
use crate::error::Result;
use crate::http::{Answer, Http, Span, Target, Tries, Trouble, cut_off};
use crate::pieces::{self, content_range};
use crate::settings::{Event, Watch, tell};

/// Downloads a file of `target` to `blob_path`, unless it exists. The caller holds the blob's lock.
pub(crate) fn download(
    http: &Arc<Http>,
    target: &Target,
    blob: &Blob,
    blob_path: &Path,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let (file, total) = (blob.file.as_str(), blob.size);
    if has_length(blob_path, total) {
        return tell(watch, Event::Progress { file, done: total, total });
    }
    let mut partial = Partial::open(incomplete(blob_path), blob)?;
    tell(watch, Event::Progress { file, done: partial.done, total })?;
    let several = http.ranges.are_for(total - partial.done);
    let fetched = match several {
        true => pieces::fetch(http, target, &mut partial, watch),
        false => Ok(false),
    };
    let fetched =
        fetched.and_then(|all| if all { Ok(()) } else { one_by_one(http, target, &mut partial, watch) });
    fetched.map_err(|e| if partial.done > 0 { e.with_kept() } else { e })?;
    partial.finish(blob_path)
}

/// Downloads the rest of a partial file over one connection.
fn one_by_one(http: &Http, target: &Target, partial: &mut Partial, watch: &mut Watch<'_>) -> Result<()> {
    let url = http.file_url(target.repo, target.revision, &partial.blob.file);
    let mut tries = Tries::new(&http.timing, http.timing.tries);
    let mut ranges = true;
    let mut best = partial.done;
    while partial.done < partial.blob.size {
        if !ranges {
            partial.restart()?;
        }
        let asked = http.ask(Method::GET, &url, Span { from: partial.done, end: None }, target);
        let streamed = asked.and_then(|answer| match begin(http, target, &answer, partial)? {
            Begin::Here => stream(answer, partial, watch),
            Begin::NoRanges => {
                ranges = false;
                Err(Trouble::Transient { why: "the server cannot resume".to_owned(), after: None })
            }
        });
        if partial.done >= best.saturating_add(PROGRESS) {
            best = partial.done;
            tries.reset();
        }
        if let Err(trouble) = streamed {
            tries.pause(&target.what(), trouble, watch)?;
        }
    }
    Ok(())
}

/// Relation of an answer's body to the partial file: it continues it, or not.
enum Begin {
    /// It begins where the partial file ends.
    Here,
    /// It is another range: ask for the whole file.
    NoRanges,
}

fn begin(
    http: &Http,
    target: &Target,
    answer: &Answer,
    partial: &mut Partial,
) -> std::result::Result<Begin, Trouble> {
    let (done, size) = (partial.done, partial.blob.size);
    match answer.status() {
        200 => {
            if done > 0 {
                partial.restart()?;
            }
            match answer.header(header::CONTENT_LENGTH).and_then(|n| n.parse::<u64>().ok()) {
                Some(n) if n != size => Err(partial.wrong_length(format!("the server sends {n}")).into()),
                _ => Ok(Begin::Here),
            }
        }
        206 => match answer.header(header::CONTENT_RANGE).and_then(content_range) {
            Some((_, Some(total))) if total != size => {
                Err(partial.wrong_length(format!("the server has {total}")).into())
            }
            Some((start, _)) if start == done => Ok(Begin::Here),
            _ => Ok(Begin::NoRanges),
        },
        416 if done > 0 => Ok(Begin::NoRanges),
        _ => Err(http.refusal(answer, target)),
    }
}

/// Appends a body to the partial file.
fn stream(answer: Answer, partial: &mut Partial, watch: &mut Watch<'_>) -> std::result::Result<(), Trouble> {
    let mut body = answer.response.into_body().into_reader();
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = body.read(&mut chunk).map_err(|e| cut_off(&e))?;
        if n == 0 && partial.done < partial.blob.size {
            return Err(cut_off(&io::ErrorKind::UnexpectedEof.into()));
        }
        if n == 0 {
            return Ok(());
        }
        if n as u64 > partial.blob.size - partial.done {
            return Err(partial.wrong_length("more arrived".to_owned()).into());
        }
        partial.append(&chunk[..n])?;
        let (file, done, total) = (&*partial.blob.file, partial.done, partial.blob.size);
        tell(watch, Event::Progress { file, done, total })?;
    }
}
