//! Names inside one program file: DWARF with inlined functions where there is any, else its symbols.
//!
//! Promises: a place in a file becomes functions, outermost first, demangled and without hashes; a place
//! that has no name stays without one. Refuses: compressed or split debug information (symbols are used).

use std::path::Path;
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::INLINED;
use super::unwind::Rules;

type Lines = addr2line::Context<EndianArcSlice<RunTimeEndian>>;

/// A symbol without a size reaches to the next one, but no further than this.
const UNSIZED: u64 = 4096;

pub struct Binary {
    /// How to find callers.
    pub rules: Option<Rules>,
    lines: Option<Lines>,
    /// Symbols in the order of their addresses.
    symbols: Vec<Symbol>,
    segments: Vec<Segment>,
}

struct Symbol {
    address: u64,
    size: u64,
    name: String,
}

/// Part of the file that is mapped into memory.
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

impl Binary {
    /// `None` when the file cannot be read or is no ELF file.
    pub fn read(path: &Path) -> Option<Binary> {
        let bytes = std::fs::read(path).ok()?;
        let file = object::File::parse(bytes.as_slice()).ok()?;
        let segments = file
            .segments()
            .map(|s| {
                let (offset, size) = s.file_range();
                Segment { offset, size, address: s.address() }
            })
            .collect();
        let mut symbols: Vec<Symbol> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|s| s.kind() == SymbolKind::Text && s.is_definition())
            .filter_map(|s| {
                Some(Symbol { address: s.address(), size: s.size(), name: s.name().ok()?.into() })
            })
            .collect();
        symbols.sort_by_key(|s| s.address);
        symbols.dedup_by_key(|s| s.address);
        Some(Binary { rules: Rules::of(&file), lines: lines(&file), symbols, segments })
    }

    /// Functions at a place of the file, the outermost first; empty when it has no name.
    pub fn functions(&self, offset: u64) -> Vec<String> {
        let Some(address) = self.address(offset) else { return Vec::new() };
        let Some(symbol) = self.symbol(address) else { return self.inlined(address) };
        // the table's name is the full one (`weir_core::router::breathe`); line tables may hold its end only
        let mut functions = self.inlined(address);
        match functions.first_mut() {
            Some(outermost) => *outermost = symbol,
            None => functions.push(symbol),
        }
        functions
    }

    /// Where the file wants a place of it to be in memory.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let inside = |s: &&Segment| (s.offset..s.offset + s.size).contains(&offset);
        self.segments.iter().find(inside).map(|s| offset - s.offset + s.address)
    }

    fn inlined(&self, address: u64) -> Vec<String> {
        let Some(lines) = &self.lines else { return Vec::new() };
        let Ok(mut frames) = lines.find_frames(address).skip_all_loads() else { return Vec::new() };
        let mut functions = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|f| f.demangle().ok());
            let file = frame.location.as_ref().and_then(|l| l.file);
            functions.extend(name.map(|n| qualified(without_parameters(&n), file) + INLINED));
        }
        // what all others were inlined into comes last and is no inlined function itself
        if let Some(outermost) = functions.last_mut() {
            outermost.truncate(outermost.len() - INLINED.len());
        }
        functions.reverse();
        functions
    }

    fn symbol(&self, address: u64) -> Option<String> {
        let after = self.symbols.partition_point(|s| s.address <= address);
        let symbol = &self.symbols[after.checked_sub(1)?];
        let size = if symbol.size == 0 { UNSIZED } else { symbol.size };
        let name = || addr2line::demangle_auto(symbol.name.as_str().into(), None).into_owned();
        (address - symbol.address < size).then(name)
    }
}

/// `push<Frame<Box<[u8]>>>` is `push`: a function is one place in the source, whatever it is compiled for.
fn without_parameters(name: &str) -> &str {
    match name.find('<') {
        Some(at) if at > 0 && name.ends_with('>') && !name[..at].ends_with("operator") => {
            name[..at].trim_end_matches("::")
        }
        _ => name,
    }
}

/// Line tables of release builds name functions without their module; the file they are in tells it.
fn qualified(name: &str, file: Option<&str>) -> String {
    match file.and_then(module) {
        Some(module) if !name.contains("::") => format!("{module}::{name}"),
        _ => name.into(),
    }
}

/// `…/weir-core/src/router/fast.rs` is `weir_core::router::fast`, `…/statrs-0.19.1/src/lib.rs` is `statrs`.
fn module(file: &str) -> Option<String> {
    let (folder, inside) = file.rsplit_once("/src/")?;
    let package = folder.rsplit('/').next()?;
    let package = match package.rsplit_once('-') {
        Some((name, version)) if version.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => package,
    };
    let modules = inside.strip_suffix(".rs")?.split('/').filter(|m| !["lib", "main", "mod"].contains(m));
    let path: Vec<String> =
        std::iter::once(package.replace('-', "_")).chain(modules.map(str::to_string)).collect();
    Some(path.join("::"))
}

fn lines(file: &object::File<'_>) -> Option<Lines> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    file.section_by_name(".debug_info")?;
    let section = |id: gimli::SectionId| -> Result<_, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|s| s.data().ok()).unwrap_or_default();
        Ok(EndianArcSlice::new(Arc::from(data), endian))
    };
    addr2line::Context::from_dwarf(Dwarf::load(section).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_function_is_compiled_for_is_not_its_name() {
        assert_eq!(without_parameters("push<Frame<Box<[u8]>>>"), "push");
        assert_eq!(without_parameters("std::panic::catch_unwind::<F, R>"), "std::panic::catch_unwind");
        for whole in ["<A as B>::get", "main", "operator<", "{closure#0}"] {
            assert_eq!(without_parameters(whole), whole);
        }
    }

    #[test]
    fn an_inlined_function_is_named_after_the_file_it_is_in() {
        let of = |name, file| qualified(name, Some(file));
        assert_eq!(
            of("classify4", "/x/crates/weir-core/src/router/fast.rs"),
            "weir_core::router::fast::classify4"
        );
        assert_eq!(of("ln", "/r/index-1/statrs-0.19.1/src/function/mod.rs"), "statrs::function::ln");
        assert_eq!(of("min", "/rustc/0123/library/core/src/cmp.rs"), "core::cmp::min");
        for (name, file) in
            [("a::b", "/x/src/y.rs"), ("memcpy", "../sysdeps/memcpy.S"), ("main", "/x/src/y.c")]
        {
            assert_eq!(of(name, file), name);
        }
    }

    #[test]
    fn a_place_outside_the_file_has_no_name_and_a_text_is_no_program() {
        let own = std::env::current_exe().expect("a test runs from a file");
        let binary = Binary::read(&own).expect("an ELF file");
        assert_eq!(binary.functions(u64::MAX), Vec::<String>::new());
        assert!(Binary::read(Path::new("/proc/self/maps")).is_none());
        assert!(Binary::read(Path::new("/nowhere")).is_none());
    }
}
