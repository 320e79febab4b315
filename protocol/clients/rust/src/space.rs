//! Spaces, and the leaves of their values on the wire.

use std::collections::BTreeMap;

/// Element types, as numbered on the wire. A bool is a byte, 0 or 1; a float16 is its 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Dtype {
    Bool = 1,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    Float32,
    Float64,
}

impl Dtype {
    fn size(self) -> usize {
        [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8][self as usize - 1]
    }
}

/// The set of possible observations or actions of one environment.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Space {
    /// Arrays. `low` and `high` hold one bound for all elements, one for each, or none.
    Box { dtype: Dtype, shape: Vec<u32>, low: Vec<f64>, high: Vec<f64> },
    /// `start`, ..., `start + n - 1`, as int64.
    Discrete { n: i64, start: i64 },
    /// A vector of choices, as int64: element i is one of 0, ..., nvec\[i\] - 1.
    MultiDiscrete(Vec<i64>),
    /// Bits of a shape, as int8.
    MultiBinary(Vec<u32>),
    /// An ordered list of spaces.
    Tuple(Vec<Space>),
    /// Named spaces. Their leaves are in the order of the keys, by code point, as in a `BTreeMap`.
    Dict(BTreeMap<String, Space>),
}

impl Space {
    /// The numbers 0, ..., `n - 1`.
    pub fn discrete(n: i64) -> Space {
        Space::Discrete { n, start: 0 }
    }

    /// Arrays without bounds.
    pub fn unbounded(dtype: Dtype, shape: &[u32]) -> Space {
        Space::Box { dtype, shape: shape.to_vec(), low: vec![], high: vec![] }
    }

    /// The arrays of a value.
    pub(crate) fn leaves(&self, to: &mut Vec<Leaf>) -> Result<(), String> {
        let (dtype, shape, bounds) = match self {
            Space::Tuple(parts) => return parts.iter().try_for_each(|part| part.leaves(to)),
            Space::Dict(parts) => return parts.values().try_for_each(|part| part.leaves(to)),
            Space::Box { dtype, shape, low, high } => (*dtype, shape.clone(), [low.len(), high.len()]),
            Space::Discrete { n, start } if *n < 1 || start.checked_add(n - 1).is_none() => {
                return Err(format!("a discrete of {n} numbers from {start}: at least 1, and all must fit int64"));
            }
            Space::Discrete { .. } => (Dtype::Int64, vec![], [0, 0]),
            Space::MultiDiscrete(nvec) => (Dtype::Int64, vec![nvec.len() as u32], [0, 0]),
            Space::MultiBinary(shape) => (Dtype::Int8, shape.clone(), [0, 0]),
        };
        let mut elements = 1usize;
        for axis in &shape {
            elements = elements.checked_mul(*axis as usize).filter(|n| (1..1 << 31).contains(n)).ok_or_else(|| {
                format!("a space has the shape {shape:?}: axes must be at least 1, elements at most 2^31 - 1")
            })?;
        }
        if bounds.iter().any(|n| *n > 1 && *n != elements) {
            return Err(format!("a box of {elements} elements has {bounds:?} bounds"));
        }
        to.push(Leaf { space: self.clone(), dtype, shape, elements });
        Ok(())
    }
}

/// One array of a value.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    space: Space,
    pub dtype: Dtype,
    pub shape: Vec<u32>,
    elements: usize,
}

impl Leaf {
    /// The number of bytes for one environment.
    pub fn size(&self) -> usize {
        self.elements * self.dtype.size()
    }

    /// Whether `data` has `n` values, and the values of `rows` (or all) are in the space. `bounds`: also check the bounds
    /// of a box, as for actions.
    pub fn legal(&self, data: &[u8], n: usize, rows: Option<&[bool]>, bounds: bool) -> bool {
        let counts = |i: usize| rows.map_or(true, |rows| rows[i / self.elements]);
        let fits = |(i, b): (usize, &[u8])| !counts(i) || self.in_range(b, i % self.elements, bounds);
        let any = matches!(self.space, Space::Box { .. }) && !bounds && Dtype::Bool != self.dtype;
        data.len() == n * self.size()
            && (any && (self.dtype as u32) < Dtype::Float16 as u32
                || data.chunks(self.dtype.size()).enumerate().all(fits))
    }

    fn in_range(&self, b: &[u8], i: usize, bounds: bool) -> bool {
        let integer = || i64::from_le_bytes(b.try_into().expect("8 bytes"));
        match &self.space {
            Space::MultiBinary(_) => b[0] <= 1,
            Space::Discrete { n, start } => {
                integer() >= *start && integer().wrapping_sub(*start) as u64 <= (n - 1) as u64
            }
            Space::MultiDiscrete(nvec) => (0..nvec[i]).contains(&integer()),
            Space::Box { low, high, .. } => {
                let v = self.number(b);
                // Bounds are rounded to the dtype, by half of its last place.
                let slack = match self.dtype {
                    Dtype::Bool => return b[0] <= 1,
                    Dtype::Float16 => 1.0 / 2048.0,
                    Dtype::Float32 => 1.0 / 16_777_216.0,
                    _ => 0.0,
                };
                let bound = |of: &Vec<f64>| of.get(if of.len() == 1 { 0 } else { i }).copied().filter(|_| bounds);
                v.is_finite()
                    && bound(low).map_or(true, |low| low.is_infinite() || v >= low - slack * low.abs())
                    && bound(high).map_or(true, |high| high.is_infinite() || v <= high + slack * high.abs())
            }
            Space::Tuple(_) | Space::Dict(_) => false,
        }
    }

    fn number(&self, b: &[u8]) -> f64 {
        macro_rules! read {
            ($t:ty) => {
                <$t>::from_le_bytes(b.try_into().expect("as many bytes as the dtype has")) as f64
            };
        }
        match self.dtype {
            Dtype::Bool | Dtype::Uint8 => read!(u8),
            Dtype::Uint16 => read!(u16),
            Dtype::Uint32 => read!(u32),
            Dtype::Uint64 => read!(u64),
            Dtype::Int8 => read!(i8),
            Dtype::Int16 => read!(i16),
            Dtype::Int32 => read!(i32),
            Dtype::Int64 => read!(i64),
            Dtype::Float32 => read!(f32),
            Dtype::Float64 => read!(f64),
            Dtype::Float16 => {
                let bits = u16::from_le_bytes([b[0], b[1]]);
                let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
                let size = match exponent {
                    31 => f64::NAN,
                    0 => fraction * 2f64.powi(-24),
                    _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
                };
                if bits >> 15 == 1 {
                    -size
                } else {
                    size
                }
            }
        }
    }
}

/// The type of an array's elements.
pub trait Element: Copy {
    /// Append the bytes of this number.
    fn put(self, to: &mut Vec<u8>);
    /// The numbers of these bytes.
    fn read(from: &[u8]) -> Vec<Self>;
}

macro_rules! elements {
    ($($t:ty),*) => {$(
        impl Element for $t {
            fn put(self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            fn read(from: &[u8]) -> Vec<$t> {
                let size = std::mem::size_of::<$t>();
                from.chunks_exact(size).map(|b| <$t>::from_le_bytes(b.try_into().expect("a chunk of its size"))).collect()
            }
        }
    )*};
}
elements!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// Convert numbers to a leaf: little-endian bytes.
pub fn bytes<T: Element>(numbers: &[T]) -> Vec<u8> {
    let mut to = Vec::with_capacity(std::mem::size_of_val(numbers));
    numbers.iter().for_each(|number| number.put(&mut to));
    to
}

/// Convert a leaf to numbers. `T` must be the type of its dtype.
pub fn values<T: Element>(leaf: &[u8]) -> Vec<T> {
    T::read(leaf)
}
