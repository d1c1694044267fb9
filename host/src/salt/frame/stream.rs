//! Frames on a stream and in a file: four bytes of length, big-endian, and the body.
//!
//! Memory is taken as bytes arrive, never by what the length promises.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::FrameError;

/// The usual limit for the body of a frame: 64 MiB.
pub const MAX_FRAME: usize = 64 << 20;

const PREFIX: usize = 4;

/// Reads one frame's body; none if the other side closed the connection between frames.
pub async fn read_frame<R: AsyncRead + Unpin>(
    reader: &mut R,
    limit: usize,
) -> Result<Option<Vec<u8>>, FrameError> {
    let mut prefix = [0; PREFIX];
    let mut got = 0;
    while let Some(rest) = prefix.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest).await? {
            0 if got == 0 => return Ok(None),
            0 => return Err(FrameError::Cut { got, expected: PREFIX }),
            count => got += count,
        }
    }
    let length = u32::from_be_bytes(prefix);
    let expected = usize::try_from(length)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or(FrameError::TooLong { length: length.into(), limit })?;
    let mut body = Vec::with_capacity(expected.min(64 << 10));
    reader.take(length.into()).read_to_end(&mut body).await?;
    if body.len() < expected {
        return Err(FrameError::Cut { got: PREFIX + body.len(), expected: PREFIX + expected });
    }
    Ok(Some(body))
}

/// A longer body is not copied to be written together with its length.
const TOGETHER: usize = 64 << 10;

/// Writes one frame and flushes.
pub async fn write_frame<W: AsyncWrite + Unpin>(
    writer: &mut W,
    body: &[u8],
    limit: usize,
) -> Result<(), FrameError> {
    if body.len() <= TOGETHER {
        // In one piece, or the length alone would wake the reader.
        writer.write_all(&with_length(body, limit)?).await?;
    } else {
        writer.write_all(&prefix(body, limit)?).await?;
        writer.write_all(body).await?;
    }
    writer.flush().await?;
    Ok(())
}

/// A body with its length before it, as in a file of the inbox.
pub fn with_length(body: &[u8], limit: usize) -> Result<Vec<u8>, FrameError> {
    let prefix = prefix(body, limit)?;
    let mut frame = Vec::with_capacity(prefix.len() + body.len());
    frame.extend_from_slice(&prefix);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// The body of the one frame in a file of the inbox.
pub fn body_of_file(file: &[u8], limit: usize) -> Result<&[u8], FrameError> {
    let cut = |expected| FrameError::Cut { got: file.len(), expected };
    let (prefix, rest) = file.split_first_chunk::<PREFIX>().ok_or(cut(PREFIX))?;
    let length = u32::from_be_bytes(*prefix);
    let expected = usize::try_from(length)
        .ok()
        .filter(|length| *length <= limit)
        .ok_or(FrameError::TooLong { length: length.into(), limit })?;
    match rest.len().checked_sub(expected) {
        Some(0) => Ok(rest),
        Some(extra) => Err(FrameError::Trailing { extra }),
        None => Err(cut(PREFIX + expected)),
    }
}

fn prefix(body: &[u8], limit: usize) -> Result<[u8; PREFIX], FrameError> {
    match u32::try_from(body.len()) {
        Ok(length) if body.len() <= limit => Ok(length.to_be_bytes()),
        _ => Err(FrameError::TooLong { length: u64::try_from(body.len()).unwrap_or(u64::MAX), limit }),
    }
}
