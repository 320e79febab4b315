//! The part of Protobuf that RLX needs.

use crate::space::{Leaf, Space};

pub(crate) const MALFORMED: u64 = 1;
pub(crate) const SPACE: u64 = 6;
pub(crate) const VALUE: u64 = 8;
pub(crate) const LIMIT: u64 = 9;

/// A message, or a part of one, that is being written.
#[derive(Default)]
pub(crate) struct Part(pub Vec<u8>);

impl Part {
    pub fn varint(mut self, mut v: u64) -> Part {
        while v > 127 {
            self.0.push(v as u8 | 128);
            v >>= 7;
        }
        self.0.push(v as u8);
        self
    }

    pub fn integer(self, field: u64, v: u64) -> Part {
        if v == 0 {
            self
        } else {
            self.varint(field << 3).varint(v)
        }
    }

    pub fn bytes(self, field: u64, data: &[u8]) -> Part {
        let mut part = self.varint(field << 3 | 2).varint(data.len() as u64);
        part.0.extend_from_slice(data);
        part
    }

    pub fn text(self, field: u64, text: &str) -> Part {
        if text.is_empty() {
            self
        } else {
            self.bytes(field, text.as_bytes())
        }
    }

    pub fn double(self, field: u64, v: f64) -> Part {
        let mut part = self.varint(field << 3 | 1);
        part.0.extend_from_slice(&v.to_le_bytes());
        part
    }

    pub fn doubles(self, field: u64, numbers: &[f64]) -> Part {
        if numbers.is_empty() {
            self
        } else {
            self.bytes(field, &crate::bytes(numbers))
        }
    }

    pub fn packed(self, field: u64, numbers: impl Iterator<Item = u64>) -> Part {
        let content = numbers.fold(Part::default(), Part::varint);
        if content.0.is_empty() {
            self
        } else {
            self.bytes(field, &content.0)
        }
    }

    pub fn mask(self, field: u64, mask: &[bool]) -> Part {
        if !mask.contains(&true) {
            return self;
        }
        self.bytes(field, &mask.iter().map(|one| u8::from(*one)).collect::<Vec<u8>>())
    }

    /// Add a space, with or without the bounds of boxes.
    pub fn space(self, field: u64, space: &Space, bounds: bool) -> Part {
        let part = Part::default();
        let shape = |part: Part, field, shape: &[u32]| part.packed(field, shape.iter().map(|axis| u64::from(*axis)));
        let (kind, content) = match space {
            Space::Box { dtype, shape: axes, low, high } => {
                let part = shape(part.integer(1, *dtype as u64), 2, axes);
                (1, if bounds { part.doubles(3, low).doubles(4, high) } else { part })
            }
            Space::Discrete { n, start } => (2, part.integer(1, *n as u64).integer(2, *start as u64)),
            Space::MultiDiscrete(nvec) => (3, part.packed(1, nvec.iter().map(|n| *n as u64))),
            Space::MultiBinary(axes) => (4, shape(part, 1, axes)),
            Space::Tuple(parts) => (5, parts.iter().fold(part, |all, one| all.space(1, one, bounds))),
            Space::Dict(parts) => (
                6,
                parts
                    .iter()
                    .fold(part, |all, (key, one)| all.bytes(1, &Part::default().text(1, key).space(2, one, bounds).0)),
            ),
        };
        self.bytes(field, &Part::default().bytes(kind, &content.0).0)
    }

    pub fn leaves(mut self, field: u64, leaves: &[Leaf], data: &[Vec<u8>], n: usize) -> Part {
        for (leaf, data) in leaves.iter().zip(data) {
            let shape = std::iter::once(n as u64).chain(leaf.shape.iter().map(|axis| u64::from(*axis)));
            let head = Part::default().integer(1, leaf.dtype as u64).packed(2, shape);
            let head = head.varint(3 << 3 | 2).varint(data.len() as u64);
            self = self.varint(field << 3 | 2).varint((head.0.len() + data.len()) as u64);
            self.0.extend_from_slice(&head.0);
            self.0.extend_from_slice(data);
        }
        self
    }

    /// Return this content as a message in a frame.
    pub fn frame(&self, kind: u64) -> Vec<u8> {
        let head = Part::default().varint(kind << 3 | 2).varint(self.0.len() as u64);
        let mut frame = ((head.0.len() + self.0.len()) as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(&head.0);
        frame.extend_from_slice(&self.0);
        frame
    }
}

/// A field that was read: an integer, or bytes (also of a fixed number).
#[derive(Clone, Copy, Default)]
pub(crate) struct Field<'a> {
    pub number: u64,
    pub kind: u64,
    integer: u64,
    pub bytes: &'a [u8],
}

/// The fields of a message, in their order.
#[derive(Default)]
pub(crate) struct Message<'a>(pub Vec<Field<'a>>);

impl<'a> Message<'a> {
    /// Read a message. Pieces of a message are merged as Protobuf requires, as if their bytes were joined.
    pub fn parse(pieces: &[&'a [u8]]) -> Option<Message<'a>> {
        let mut fields = vec![];
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                fields.push(field(&mut rest, 0).filter(|field| field.kind != 4)?);
            }
        }
        Some(Message(fields))
    }

    pub fn all(&self, number: u64) -> Vec<&'a [u8]> {
        self.0.iter().filter(|f| f.number == number && f.kind == 2).map(|f| f.bytes).collect()
    }

    fn last(&self, number: u64, kind: u64) -> Option<&Field<'a>> {
        self.0.iter().rev().find(|f| f.number == number && f.kind == kind)
    }

    pub fn integer(&self, number: u64) -> u64 {
        self.last(number, 0).map_or(0, |f| f.integer)
    }

    pub fn double(&self, number: u64) -> f64 {
        self.last(number, 1).map_or(0.0, |f| f64::from_le_bytes(f.bytes.try_into().expect("8 bytes")))
    }

    /// A text, or None if it is not valid UTF-8.
    pub fn text(&self, number: u64) -> Option<String> {
        self.last(number, 2).map_or(Some(String::new()), |f| String::from_utf8(f.bytes.to_vec()).ok())
    }

    /// Integers, packed or not: at most `most` + 1.
    pub fn integers(&self, number: u64, most: usize) -> Option<Vec<u64>> {
        let mut all = vec![];
        for f in self.0.iter().filter(|f| f.number == number && matches!(f.kind, 0 | 2)) {
            let mut rest = f.bytes;
            if f.kind == 0 {
                all.push(f.integer);
            }
            while !rest.is_empty() && all.len() <= most {
                all.push(varint(&mut rest)?);
            }
        }
        Some(all)
    }
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut v = 0;
    for i in 0..10 {
        let byte = *rest.get(i)?;
        v |= u64::from(byte & 127) << (7 * i);
        if byte < 128 {
            *rest = &rest[i + 1..];
            return Some(v);
        }
    }
    None
}

/// Read a field. A group is unknown and skipped.
fn field<'a>(rest: &mut &'a [u8], depth: u32) -> Option<Field<'a>> {
    let tag = varint(rest).filter(|tag| tag >> 3 != 0 && tag >> 32 == 0 && depth <= 100)?;
    let mut f = Field { number: tag >> 3, kind: tag & 7, integer: 0, bytes: &[] };
    let size = match f.kind {
        0 => {
            f.integer = varint(rest)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(rest)?).ok()?,
        3 => loop {
            let inner = field(rest, depth + 1)?;
            if inner.kind == 4 {
                break (inner.number == f.number).then_some(0)?;
            }
        },
        4 => 0,
        5 => 4,
        _ => return None,
    };
    f.bytes = rest.get(..size)?;
    *rest = &rest[size..];
    Some(f)
}

/// The leaves of actions, or an error code.
pub(crate) fn read_actions(m: &Message, leaves: &[Leaf], n: usize) -> Result<Vec<Vec<u8>>, u64> {
    let arrays = m.all(1);
    if arrays.len() != leaves.len() {
        return Err(VALUE);
    }
    arrays
        .iter()
        .zip(leaves)
        .map(|(array, leaf)| {
            let array = Message::parse(&[array]).ok_or(MALFORMED)?;
            let shape = array.integers(2, leaf.shape.len() + 1).ok_or(MALFORMED)?;
            let due = std::iter::once(n as u64).chain(leaf.shape.iter().map(|axis| u64::from(*axis)));
            let data = array.last(3, 2).map_or(&[][..], |f| f.bytes);
            let fits = shape.into_iter().eq(due) && array.integer(1) == leaf.dtype as u64;
            if fits && leaf.legal(data, n, None, true) {
                Ok(data.to_vec())
            } else {
                Err(VALUE)
            }
        })
        .collect()
}

/// The names of parameters, or an error code.
pub(crate) fn read_names(m: &Message) -> Result<Vec<String>, u64> {
    let (all, mut names) = (m.all(9), vec![]);
    if all.len() > 64 || all.iter().any(|name| name.len() > 256) {
        return Err(LIMIT);
    }
    for bytes in all {
        let name = String::from_utf8(bytes.to_vec()).map_err(|_| MALFORMED)?;
        if name.is_empty() || name.contains(char::is_control) || names.contains(&name) {
            return Err(VALUE);
        }
        names.push(name);
    }
    Ok(names)
}

/// The `n` returns of a reset or values of parameters, or an error code.
pub(crate) fn read_numbers(m: &Message, number: u64, n: usize) -> Result<Vec<f64>, u64> {
    let mut all = vec![];
    for f in m.0.iter().filter(|f| f.number == number && (f.kind == 1 || f.kind == 2)) {
        if f.bytes.len() % 8 != 0 {
            return Err(MALFORMED);
        }
        if all.len() + f.bytes.len() / 8 > n {
            return Err(VALUE);
        }
        all.extend(crate::values::<f64>(f.bytes));
    }
    if all.len() == n && all.iter().all(|v| v.abs() <= 1e30) {
        Ok(all)
    } else {
        Err(VALUE)
    }
}
