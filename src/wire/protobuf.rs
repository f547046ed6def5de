//! The fields of a protobuf message, one after another, where they lie: nothing is copied and nothing kept.
//!
//! For untrusted bytes. The messages in `proto` would allocate for each field before anything can be bounded.

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a protobuf message of that type")]
pub struct Broken;

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number, a flag or one of an enum.
    Varint(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// Of a kind that no field of ours has.
    Fixed,
}

impl<'a> Value<'a> {
    /// The number that this has to be.
    pub fn number(self) -> Result<u64, Broken> {
        match self {
            Self::Varint(number) => Ok(number),
            Self::Bytes(_) | Self::Fixed => Err(Broken),
        }
    }

    /// The text that this has to be.
    pub fn text(self) -> Result<&'a str, Broken> {
        str::from_utf8(self.bytes()?).map_err(|_| Broken)
    }

    /// The fields of the message that this has to be.
    pub fn fields(self) -> Result<Fields<'a>, Broken> {
        Ok(Fields(self.bytes()?))
    }

    fn bytes(self) -> Result<&'a [u8], Broken> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed => Err(Broken),
        }
    }
}

/// The fields of a message: the number of each, and its value.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.field())
    }
}

impl<'a> Fields<'a> {
    /// The number in a wrapper such as `google.protobuf.UInt64Value`: the last that is said, or what it was before.
    pub fn wrapped(self, before: u64) -> Result<u64, Broken> {
        let mut number = before;
        for field in self {
            if let (1, value) = field? {
                number = value.number()?;
            }
        }
        Ok(number)
    }

    fn field(&mut self) -> Result<(u64, Value<'a>), Broken> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Broken)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            // Groups, which proto3 has not, and kinds that nobody has.
            _ => return Err(Broken),
        };
        match key >> 3 {
            number @ 1..=0x1fff_ffff => Ok((number, value)),
            _ => Err(Broken),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Broken)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Broken)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return Err(Broken);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Broken)
    }
}
