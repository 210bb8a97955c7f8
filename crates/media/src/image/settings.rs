//! [`Settings`]: image preprocessing from `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tallow_checkpoint::Checkpoint;
use tallow_checkpoint::{FileError, Result};

use super::decode::{MOST_PIXELS, PictureError};
use super::resize::{Filter, Picture, Resize};
use super::{CHANNELS, ImageDefaults};

/// The config file, and the file and object that newer folders have instead.
const FILE: &str = "preprocessor_config.json";
const NEWER: (&str, &str) = ("processor_config.json", "image_processor");

/// Target size of resizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Shorter side; the longer one keeps the aspect ratio.
    Shortest(usize),
    /// Height and width.
    Exact(usize, usize),
}

/// Preprocessing steps in the order that they are applied. `None` skips a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Settings {
    resize: Option<(Size, Filter)>,
    /// Height and width of the center crop.
    crop: Option<(usize, usize)>,
    /// Factor on the bytes.
    scale: Option<f64>,
    /// Mean and standard deviation per channel.
    normal: Option<([f32; CHANNELS], [f32; CHANNELS])>,
    /// Image side that the model takes, in pixels.
    side: usize,
}

impl Settings {
    /// Reads the config of a model that takes images of `side` x `side` pixels.
    pub(super) fn read(checkpoint: &Checkpoint, side: usize, usual: &ImageDefaults) -> Result<Settings> {
        let newer = || {
            Ok::<_, FileError>(
                checkpoint.json_file(NEWER.0)?.and_then(|mut j| Some(j.get_mut(NEWER.1)?.take())),
            )
        };
        let (name, json) = match checkpoint.json_file(FILE)? {
            Some(json) => (FILE, json),
            None => (NEWER.0, newer()?.unwrap_or(Value::Null)),
        };
        let file = File { path: checkpoint.path.join(name), json };
        if !file.json.is_null() && !file.json.is_object() {
            return file.bad("the file", &file.json, "an object of settings");
        }
        let settings = Settings {
            resize: file.if_on("do_resize", true, || Ok((file.size(usual, side)?, file.filter()?)))?,
            crop: file.if_on("do_center_crop", usual.crops, || file.crop(side))?,
            scale: file.if_on("do_rescale", true, || file.number("rescale_factor", 1.0 / 255.0))?,
            normal: file.if_on("do_normalize", true, || file.normal(usual))?,
            side,
        };
        for other in ["do_pad", "do_flip_channel_order", "do_thumbnail", "do_align_long_axis"] {
            if file.flag(other, false)? {
                return Err(FileError::unsupported(&file.path, format!("{other} = true"), "false is"));
            }
        }
        match settings.gives() {
            Some(size) if size == (side, side) => Ok(settings),
            Some((height, width)) => {
                let why =
                    format!("makes images of {width} x {height} pixels, and the model takes {side} x {side}");
                Err(FileError::bad(&file.path, "the file", why))
            }
            // Images must then have the right size already.
            None => Ok(settings),
        }
    }

    /// Output height and width, if independent of the input image.
    fn gives(&self) -> Option<(usize, usize)> {
        match (self.crop, self.resize) {
            (Some(crop), _) => Some(crop),
            (None, Some((Size::Exact(height, width), _))) => Some((height, width)),
            (None, _) => None,
        }
    }

    /// Height and width of a resized image.
    fn resized(&self, picture: &Picture) -> (usize, usize) {
        let (height, width) = (picture.height, picture.width);
        match self.resize {
            None => (height, width),
            Some((Size::Exact(height, width), _)) => (height, width),
            Some((Size::Shortest(short), _)) => {
                let long = short as f64 * height.max(width) as f64 / height.min(width).max(1) as f64;
                if height <= width { (short, long as usize) } else { (long as usize, short) }
            }
        }
    }

    /// Preprocessed pixels as planes: [channels, height, width].
    pub(super) fn apply(&self, mut picture: Picture) -> std::result::Result<Vec<f32>, PictureError> {
        let resized = self.resized(&picture);
        let (height, width) = self.crop.unwrap_or(resized);
        if (height, width) != (self.side, self.side) {
            let (height, width) = resized;
            return Err(PictureError::Size { width, height, side: self.side });
        }
        // Center crop; pixels outside the image are black.
        let first = |whole: usize, part: usize| (whole as i64 - part as i64).div_euclid(2);
        let (mut top, mut left) = (first(resized.0, height), first(resized.1, width));
        if let Some((_, filter)) = self.resize {
            // Only what is not cropped is computed.
            let visible = |first: i64, to: usize, crop: usize| {
                let first = first.max(0) as usize;
                Resize { to, part: first..(first + crop).min(to) }
            };
            let (across, down) = (visible(left, resized.1, width), visible(top, resized.0, height));
            picture =
                picture.resized(filter, across, down, MOST_PIXELS as usize).ok_or(PictureError::Narrow)?;
            (top, left) = (top.min(0), left.min(0));
        }
        let at = |of: usize, first: i64, whole: usize| {
            usize::try_from(of as i64 + first).ok().filter(|at| *at < whole)
        };
        let mut numbers = Vec::with_capacity(CHANNELS * height * width);
        for channel in 0..CHANNELS {
            let values = self.values(channel);
            for y in 0..height {
                let row = at(y, top, picture.height);
                for x in 0..width {
                    let pixel = row.zip(at(x, left, picture.width));
                    let byte =
                        pixel.map_or(0, |(y, x)| picture.bytes[CHANNELS * (y * picture.width + x) + channel]);
                    numbers.push(values[usize::from(byte)]);
                }
            }
        }
        Ok(numbers)
    }

    /// Lookup table from bytes to normalized values of a channel.
    fn values(&self, channel: usize) -> [f32; 256] {
        std::array::from_fn(|byte| {
            let x = self.scale.map_or(byte as f32, |scale| (byte as f64 * scale) as f32);
            self.normal.map_or(x, |(mean, deviation)| (x - mean[channel]) / deviation[channel])
        })
    }
}

/// A config file.
struct File {
    path: PathBuf,
    json: Value,
}

/// Largest accepted side.
const MOST_SIDE: u64 = 1 << 14;

impl File {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bad<T>(&self, key: &str, value: &Value, want: &str) -> Result<T> {
        Err(FileError::bad(self.path(), key, format!("is {value}; {want} is expected")))
    }

    fn flag(&self, key: &str, usual: bool) -> Result<bool> {
        match &self.json[key] {
            Value::Null => Ok(usual),
            Value::Bool(flag) => Ok(*flag),
            other => self.bad(key, other, "true or false"),
        }
    }

    /// Result of `read` if a flag is on.
    fn if_on<T>(&self, switch: &str, usual: bool, read: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        self.flag(switch, usual)?.then(read).transpose()
    }

    fn number(&self, key: &str, usual: f64) -> Result<f64> {
        match &self.json[key] {
            Value::Null => Ok(usual),
            value => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(x),
                None => self.bad(key, value, "a number"),
            },
        }
    }

    /// Pixel count from a number or from a field of an object.
    fn pixels(&self, key: &str, value: &Value) -> Result<Option<usize>> {
        match value {
            Value::Null => Ok(None),
            value => match value.as_u64().filter(|n| (1..=MOST_SIDE).contains(n)) {
                Some(n) => Ok(Some(n as usize)),
                None => self.bad(key, value, "a number of pixels"),
            },
        }
    }

    /// Height and width from an object.
    fn exact(&self, key: &str, value: &Value) -> Result<Option<(usize, usize)>> {
        let [height, width] = ["height", "width"].map(|side| self.pixels(key, &value[side]));
        Ok(height?.zip(width?))
    }

    fn size(&self, usual: &ImageDefaults, side: usize) -> Result<Size> {
        let value = &self.json["size"];
        let square = |n| if usual.crops { Size::Shortest(n) } else { Size::Exact(n, n) };
        match value {
            Value::Null => Ok(square(side)),
            Value::Object(_) => {
                match (self.exact("size", value)?, self.pixels("size", &value["shortest_edge"])?) {
                    (None, Some(_)) if !value["longest_edge"].is_null() => {
                        let why = "shortest_edge alone is, and height with width";
                        Err(FileError::unsupported(self.path(), "size with a longest_edge", why))
                    }
                    (None, Some(n)) => Ok(Size::Shortest(n)),
                    (Some((height, width)), None) => Ok(Size::Exact(height, width)),
                    _ => self.bad("size", value, "shortest_edge, or height and width,"),
                }
            }
            value => Ok(square(self.pixels("size", value)?.unwrap_or(side))),
        }
    }

    fn crop(&self, side: usize) -> Result<(usize, usize)> {
        let value = &self.json["crop_size"];
        match value {
            Value::Object(_) => match self.exact("crop_size", value)? {
                Some(size) => Ok(size),
                None => self.bad("crop_size", value, "height and width"),
            },
            value => {
                let n = self.pixels("crop_size", value)?.unwrap_or(side);
                Ok((n, n))
            }
        }
    }

    fn filter(&self) -> Result<Filter> {
        match &self.json["resample"] {
            Value::Null => Ok(Filter::Bicubic),
            value => match value.as_u64() {
                Some(1) => Ok(Filter::Lanczos),
                Some(2) => Ok(Filter::Bilinear),
                Some(3) => Ok(Filter::Bicubic),
                Some(4) => Ok(Filter::Box),
                Some(5) => Ok(Filter::Hamming),
                Some(0) => {
                    let why = "1 to 5 are, which look at more than the nearest pixel";
                    Err(FileError::unsupported(self.path(), "resample = 0", why))
                }
                _ => self.bad("resample", value, "a number from 0 to 5"),
            },
        }
    }

    fn normal(&self, usual: &ImageDefaults) -> Result<([f32; CHANNELS], [f32; CHANNELS])> {
        let deviation = self.colours("image_std", usual.deviation)?;
        match deviation.contains(&0.0) {
            true => self.bad("image_std", &self.json["image_std"], "what can be divided by"),
            false => Ok((self.colours("image_mean", usual.mean)?, deviation)),
        }
    }

    /// One float per channel, or one for all.
    fn colours(&self, key: &str, usual: [f32; CHANNELS]) -> Result<[f32; CHANNELS]> {
        let value = &self.json[key];
        let number = |value: &Value| value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let of = match value {
            Value::Null => Some(usual),
            Value::Array(list) if list.len() == CHANNELS => {
                let list: Option<Vec<f32>> = list.iter().map(number).collect();
                list.and_then(|list| list.try_into().ok())
            }
            value => number(value).map(|x| [x; CHANNELS]),
        };
        of.map_or_else(|| self.bad(key, value, "a number for each of three colours"), Ok)
    }
}
