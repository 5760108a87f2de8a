//! The maps of a loaded object, each under the shape its C declaration has.
//!
//! Promises: keys and values are the bytes [`crate::layout`] says; a map of another shape is refused when it is taken.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, IterableMap, Map, MapData, MapError, MapInfo, PerCpuArray, XskMap};
use aya::programs::{ProgramError, ProgramInfo, loaded_links, loaded_programs};

use crate::error::{LoadError, answer, explain, missing};

/// Maps of one object that nobody has taken yet.
#[derive(Debug)]
pub struct Maps {
    pub(crate) ebpf: Ebpf,
    pub(crate) name: &'static str,
}

/// A map that several programs use.
#[derive(Debug)]
pub struct Shared {
    pub(crate) name: &'static str,
    pub(crate) fd: OwnedFd,
}

impl Shared {
    fn of(name: &'static str, map: &MapData) -> Result<Shared, LoadError> {
        let fd = map.fd().as_fd().try_clone_to_owned().map_err(|e| explain(name, e))?;
        Ok(Shared { name, fd })
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Maps {
    fn take<T: TryFrom<Map, Error = MapError>>(&mut self, map: &'static str) -> Result<T, LoadError> {
        let found = self.ebpf.take_map(map).ok_or_else(|| missing(self.name, map))?;
        found.try_into().map_err(|e: MapError| explain(map, e))
    }

    /// Takes an array of one value.
    pub fn memory<const N: usize>(&mut self, map: &'static str) -> Result<Memory<N>, LoadError> {
        Ok(Memory { array: self.take(map)?, name: map })
    }

    /// Takes a hash table, with or without eviction.
    pub fn table<const K: usize, const V: usize>(
        &mut self,
        map: &'static str,
    ) -> Result<Table<K, V>, LoadError> {
        Ok(Table { hash: self.take(map)?, name: map })
    }

    /// Takes a trie of prefixes.
    pub fn trie<const K: usize, const V: usize>(
        &mut self,
        map: &'static str,
    ) -> Result<Trie<K, V>, LoadError> {
        Ok(Trie { trie: self.take(map)?, name: map })
    }

    /// Takes an array with a value for each CPU, of `N` words of 64 bits.
    pub fn counters<const N: usize>(&mut self, map: &'static str) -> Result<Counters<N>, LoadError> {
        Ok(Counters { array: self.take(map)?, name: map })
    }

    /// Takes a table of AF_XDP sockets by queue.
    pub fn sockets(&mut self, map: &'static str) -> Result<Sockets, LoadError> {
        Ok(Sockets { sockets: self.take(map)?, name: map })
    }

    /// An array's descriptor, to map it into memory.
    pub fn array_fd(&self, map: &str) -> Result<BorrowedFd<'_>, LoadError> {
        match self.ebpf.map(map) {
            Some(Map::Array(array)) => Ok(array.fd().as_fd()),
            _ => Err(missing(self.name, map)),
        }
    }

    /// Lets `section` or map `to` of the object be the map behind `with`, from before its program is loaded.
    ///
    /// aya writes a map's descriptor into the instructions as a number. As libbpf's `bpf_map__reuse_fd` does,
    /// the number is made to stand for the other map.
    pub(crate) fn substitute(&mut self, to: &str, with: BorrowedFd<'_>) -> Result<(), LoadError> {
        let name = self.name;
        let number = self.ebpf.map_mut(to).and_then(|map| data(map)).ok_or_else(|| missing(name, to))?;
        let number = number.fd().as_fd().as_raw_fd();
        // SAFETY: dup3 touches no memory. `number` is a descriptor that `self.ebpf` owns and, being borrowed
        // mutably, nobody uses meanwhile; it stays open, and its owner closes it once, as before.
        let result = unsafe { libc::dup3(with.as_raw_fd(), number, libc::O_CLOEXEC) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return Err(LoadError::Call { name, call: format!("{to}: dup3"), error });
        }
        Ok(())
    }
}

/// What all kinds of maps used here have behind them.
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::LpmTrie(data) => Some(data),
        _ => None,
    }
}

/// A hash table: keys of `K` bytes, values of `V`.
pub struct Table<const K: usize, const V: usize> {
    hash: HashMap<MapData, [u8; K], [u8; V]>,
    name: &'static str,
}

impl<const K: usize, const V: usize> Table<K, V> {
    pub fn get(&self, key: [u8; K]) -> Result<Option<[u8; V]>, LoadError> {
        match self.hash.get(&key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(explain(self.name, error)),
        }
    }

    /// Inserts or replaces.
    pub fn insert(&mut self, key: [u8; K], value: [u8; V]) -> Result<(), LoadError> {
        self.hash.insert(key, value, 0).map_err(|e| explain(self.name, e))
    }

    /// Removes; `false` when there was nothing.
    pub fn remove(&mut self, key: [u8; K]) -> Result<bool, LoadError> {
        match self.hash.remove(&key).map_err(|e| explain(self.name, e)) {
            Ok(()) => Ok(true),
            Err(LoadError::Call { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The map for other programs to use, too.
    pub fn shared(&self) -> Result<Shared, LoadError> {
        Shared::of(self.name, self.hash.map())
    }
}

/// A trie of prefixes: addresses of `K` bytes with a length in bits, values of `V`.
pub struct Trie<const K: usize, const V: usize> {
    trie: LpmTrie<MapData, [u8; K], [u8; V]>,
    name: &'static str,
}

impl<const K: usize, const V: usize> Trie<K, V> {
    /// Inserts or replaces the prefix of `bits` bits.
    pub fn insert(&mut self, address: [u8; K], bits: u8, value: [u8; V]) -> Result<(), LoadError> {
        self.trie.insert(&Key::new(bits.into(), address), value, 0).map_err(|e| explain(self.name, e))
    }

    /// Removes; `false` when there was nothing.
    pub fn remove(&mut self, address: [u8; K], bits: u8) -> Result<bool, LoadError> {
        match self.trie.remove(&Key::new(bits.into(), address)).map_err(|e| explain(self.name, e)) {
            Ok(()) => Ok(true),
            Err(LoadError::Call { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The map for other programs to use, too.
    pub fn shared(&self) -> Result<Shared, LoadError> {
        let fd = self.trie.map().fd().as_fd().try_clone_to_owned().map_err(|e| explain(self.name, e))?;
        Ok(Shared { name: self.name, fd })
    }
}

/// The values of a per-CPU array, `N` words each.
pub struct Counters<const N: usize> {
    array: PerCpuArray<MapData, [u64; N]>,
    name: &'static str,
}

impl<const N: usize> Counters<N> {
    /// The sums over all CPUs of the words of one entry.
    pub fn sum(&self, key: u32) -> Result<[u64; N], LoadError> {
        let mut sums = [0; N];
        for cpu in self.array.get(&key, 0).map_err(|e| explain(self.name, e))?.iter() {
            sums.iter_mut().zip(cpu).for_each(|(sum, word)| *sum += word);
        }
        Ok(sums)
    }

    /// The map for other programs to use, too.
    pub fn shared(&self) -> Result<Shared, LoadError> {
        Shared::of(self.name, self.array.map())
    }

    /// The map called `name` of the loaded program with this number, if both are there and it has this shape.
    pub fn of_program(program: u32, name: &'static str) -> Result<Option<Self>, LoadError> {
        let Some(info) = program_info(program).map_err(|e| explain(name, e))? else { return Ok(None) };
        let ids = info.map_ids().map_err(|e| explain(name, e))?.unwrap_or_default();
        for id in ids {
            let info = MapInfo::from_id(id).map_err(|e| explain(name, e))?;
            if info.name() == name.as_bytes() {
                let map = Map::from_map_data(MapData::from_id(id).map_err(|e| explain(name, e))?);
                let array = map.and_then(PerCpuArray::try_from);
                return Ok(array.ok().map(|array| Counters { array, name }));
            }
        }
        Ok(None)
    }
}

/// The loaded program with this number. Who may not look at others' programs has an error, not none.
fn program_info(program: u32) -> Result<Option<ProgramInfo>, ProgramError> {
    let mut refused = None;
    for info in loaded_programs() {
        match info {
            Ok(info) if info.id() == program => return Ok(Some(info)),
            Ok(_) => {}
            // One that went while they were listed is an error, too: this one may still come.
            Err(error) => refused = Some(error),
        }
    }
    match refused.filter(|error| answer(error).is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied)) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

/// The name of the loaded program with this number; `None` where it has none, or may not be looked at.
pub fn program_name(program: u32) -> Option<String> {
    let info = program_info(program).ok().flatten()?;
    Some(String::from_utf8_lossy(info.name()).into_owned())
}

/// The number of the link that holds the loaded program with this number somewhere.
pub fn loaded_link(program: u32) -> Option<u32> {
    Some(loaded_links().flatten().find(|link| link.program_id() == program)?.id())
}

/// AF_XDP sockets by queue.
pub struct Sockets {
    sockets: XskMap<MapData>,
    name: &'static str,
}

impl Sockets {
    /// The kernel takes a socket out when it closes.
    pub fn set(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), LoadError> {
        self.sockets.set(queue, socket, 0).map_err(|e| explain(self.name, e))
    }

    /// Takes out the socket of a queue, if it has one.
    pub fn unset(&mut self, queue: u32) {
        let _ = self.sockets.unset(queue);
    }
}

/// The value of an array of one: `N` bytes of a program's memory.
pub struct Memory<const N: usize> {
    array: Array<MapData, [u8; N]>,
    name: &'static str,
}

impl<const N: usize> Memory<N> {
    /// Reads a value word by word, not atomically: a program that runs meanwhile may write between two words.
    pub fn read(&self) -> Result<[u8; N], LoadError> {
        self.array.get(&0, 0).map_err(|e| explain(self.name, e))
    }

    pub fn write(&mut self, value: &[u8; N]) -> Result<(), LoadError> {
        self.array.set(0, value, 0).map_err(|e| explain(self.name, e))
    }

    /// The map for other programs to use, too.
    pub fn shared(&self) -> Result<Shared, LoadError> {
        Shared::of(self.name, self.array.map())
    }

    /// Writes zeros.
    pub fn clear(&mut self) -> Result<(), LoadError> {
        // On the heap: it may be longer than a thread's stack.
        let zeros: Box<[u8; N]> = vec![0; N].try_into().unwrap_or_else(|_| Box::new([0; N]));
        self.write(&zeros)
    }
}

macro_rules! shown_by_name {
    ($($type:ident < $(const $n:ident),* >)*) => { $(
        impl<$(const $n: usize),*> fmt::Debug for $type<$($n),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($type), self.name)
            }
        }
    )* };
}

shown_by_name!(Table<const K, const V> Trie<const K, const V> Counters<const N> Memory<const N> Sockets<>);
