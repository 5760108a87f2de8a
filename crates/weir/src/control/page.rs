//! A part of a long list: `?match=TEXT`, `?from=N` counted from 1, `?limit=N` or `all`.
//!
//! Promises: what matches is counted before the page is cut, so pages of one filter join without a gap.

use super::{HttpRequest, Response};

/// Which items of a list are asked for; all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In one of an item's words.
    pub matching: Option<String>,
    /// Counted from 0.
    pub skip: usize,
    pub limit: Option<usize>,
}

impl Page {
    /// What the query of a request for a list asks for.
    pub fn of(request: &HttpRequest) -> Result<Page, Response> {
        let wrong = |key: &str, got: &str, expected: &str| {
            Response::refusal(400, format!("{}: {key}: got `{got}`, expected {expected}", request.path))
        };
        let skip = match request.option("from") {
            None => 0,
            Some(n) => match n.parse::<usize>() {
                Ok(n) if n > 0 => n - 1,
                _ => return Err(wrong("from", &n, "a number from 1 on")),
            },
        };
        let limit = match request.option("limit") {
            None => None,
            Some(all) if all == "all" => None,
            Some(n) => Some(n.parse().map_err(|_| wrong("limit", &n, "a number or `all`"))?),
        };
        let matching = request.option("match").filter(|text| !text.is_empty());
        Ok(Page { matching, skip, limit })
    }

    /// The items asked for. `words` are those an item can be found by.
    pub fn cut<'a, T: 'a, W: AsRef<str>>(
        &self,
        items: &'a [T],
        words: impl Fn(&'a T) -> Vec<W>,
    ) -> Vec<&'a T> {
        let matches = |item: &&'a T| self.matches(|| words(item));
        items.iter().filter(matches).skip(self.skip).take(self.limit.unwrap_or(usize::MAX)).collect()
    }

    /// Whether an item with these words is asked for.
    pub fn matches<W: AsRef<str>>(&self, words: impl FnOnce() -> Vec<W>) -> bool {
        let text = self.matching.as_deref();
        text.is_none_or(|text| words().iter().any(|word| word.as_ref().contains(text)))
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;

    fn page(query: &str) -> Result<Page, Response> {
        let path = "/v1/peers".to_owned();
        Page::of(&HttpRequest { method: Method::GET, path, query: query.into(), body: Vec::new() })
    }

    #[test]
    fn pages_of_a_filter_join_without_a_gap() {
        let items: Vec<String> = (0..100).map(|n| format!("item-{n}")).collect();
        let cut = |query: &str| -> Vec<String> {
            let page = page(query).expect("a page");
            page.cut(&items, |item| vec![item.as_str()]).into_iter().cloned().collect()
        };
        assert_eq!(cut("").len(), 100);
        let sevens = cut("match=7");
        assert_eq!(sevens.len(), 19);
        assert_eq!([cut("match=7&limit=10"), cut("match=7&from=11&limit=10")].concat(), sevens);
        assert_eq!(cut("from=100&limit=all"), ["item-99"]);
        assert!(cut("from=101").is_empty() && cut("match=x").is_empty());
    }

    #[test]
    fn what_is_no_page_is_refused() {
        for wrong in ["from=0", "from=x", "limit=many"] {
            assert_eq!(page(wrong).expect_err("refused").status, 400, "{wrong}");
        }
    }
}
