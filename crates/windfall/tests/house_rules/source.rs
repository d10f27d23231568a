//! A Rust file as the rules read it: its lines, and its tokens with line, module and whether they are test code.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A token: a word, a literal, one punctuation character, or one end of a group.
#[derive(Debug)]
pub(crate) struct Token {
    pub text: String,
    pub line: usize,
    /// The index in [`Source::modules`] of its module.
    pub module: usize,
    /// Whether it is compiled for tests only.
    pub test: bool,
}

/// A file of the workspace.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the workspace's folder.
    pub path: String,
    pub text: String,
    /// The crate's folder under `crates/`.
    pub krate: String,
    pub tokens: Vec<Token>,
    /// The path of the file's own module, then those of the modules written inside it.
    pub modules: Vec<Vec<String>>,
    /// Whether the whole file is test code.
    pub test: bool,
    /// Modules that this file declares for tests only, and that have files of their own.
    test_modules: Vec<Vec<String>>,
}

impl Source {
    /// Parses a file. An error names the file and the line.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, String> {
        let stream = TokenStream::from_str(text)
            .map_err(|e| format!("{path}:{}: not Rust: {e}", e.span().start().line))?;
        let mut parts = path.split('/');
        let krate = if parts.next() == Some("crates") { parts.next().unwrap_or_default() } else { "" };
        let module = module_of(path);
        let mut source = Self {
            path: path.into(),
            text: text.into(),
            krate: krate.into(),
            tokens: Vec::new(),
            modules: vec![module.clone().unwrap_or_default()],
            test: module.is_none(),
            test_modules: Vec::new(),
        };
        source.flatten(&stream.into_iter().collect::<Vec<_>>(), 0, false);
        Ok(source)
    }

    fn push(&mut self, text: String, line: usize, module: usize, test: bool) {
        self.tokens.push(Token { text, line, module, test });
    }

    /// Appends the trees of one module, and marks those that an attribute makes test code.
    fn flatten(&mut self, trees: &[TokenTree], module: usize, test: bool) {
        // The end of the trees that an attribute has made test code.
        let mut test_until = 0;
        let mut inner_module = None;
        for at in 0..trees.len() {
            if let Some(attribute) = attribute(&trees[at..]) {
                match attribute {
                    Attribute::Outer(inside) if is_for_tests(&inside) => {
                        let end = at + 2 + item(&trees[at + 2..]);
                        test_until = test_until.max(end);
                        self.note_test_module(&trees[at..end], module);
                    }
                    Attribute::Inner(inside) if is_for_tests(&inside) => self.test = true,
                    _ => {}
                }
            }
            let test = test || at < test_until;
            match &trees[at] {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::None => ("", ""),
                    };
                    let inside = inner_module.take().unwrap_or(module);
                    self.push(open.into(), group.span_open().start().line, module, test);
                    self.flatten(&group.stream().into_iter().collect::<Vec<_>>(), inside, test);
                    self.push(close.into(), group.span_close().start().line, module, test);
                }
                TokenTree::Ident(word) if word == "mod" => {
                    self.push("mod".into(), word.span().start().line, module, test);
                    if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(_))) =
                        (trees.get(at + 1), trees.get(at + 2))
                    {
                        let mut path = self.modules[module].clone();
                        path.push(name.to_string());
                        self.modules.push(path);
                        inner_module = Some(self.modules.len() - 1);
                    }
                }
                other => self.push(other.to_string(), other.span().start().line, module, test),
            }
        }
    }

    fn note_test_module(&mut self, trees: &[TokenTree], module: usize) {
        if let [.., TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end)] = trees
            && word == "mod"
            && end.as_char() == ';'
        {
            let mut path = self.modules[module].clone();
            path.push(name.to_string());
            self.test_modules.push(path);
        }
    }
}

/// Marks the files that another file declares as a module for tests only.
pub(crate) fn mark_tests(sources: &mut [Source]) {
    let declared: Vec<(String, Vec<String>)> =
        sources.iter().flat_map(|s| s.test_modules.iter().map(|m| (s.krate.clone(), m.clone()))).collect();
    for source in sources {
        let own = &source.modules[0];
        source.test |=
            declared.iter().any(|(krate, module)| *krate == source.krate && own.starts_with(module));
    }
}

/// Returns the module of a file, or `None` for a file outside `src/`: a test, a benchmark, an example.
fn module_of(path: &str) -> Option<Vec<String>> {
    let (_, inside) = path.split_once("/src/")?;
    let mut parts: Vec<String> = inside.trim_end_matches(".rs").split('/').map(Into::into).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    Some(parts)
}

enum Attribute {
    Outer(Vec<TokenTree>),
    Inner(Vec<TokenTree>),
}

/// Returns the attribute at the front of these trees.
fn attribute(trees: &[TokenTree]) -> Option<Attribute> {
    let content = |tree: Option<&TokenTree>| match tree {
        Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Bracket => {
            Some(g.stream().into_iter().collect())
        }
        _ => None,
    };
    match trees.first() {
        Some(TokenTree::Punct(p)) if p.as_char() == '#' => match trees.get(1) {
            Some(TokenTree::Punct(p)) if p.as_char() == '!' => content(trees.get(2)).map(Attribute::Inner),
            tree => content(tree).map(Attribute::Outer),
        },
        _ => None,
    }
}

/// Returns whether an attribute restricts its item to test builds.
fn is_for_tests(attribute: &[TokenTree]) -> bool {
    match attribute {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "cfg" => {
            needs_test(&group.stream().into_iter().collect::<Vec<_>>())
        }
        _ => false,
    }
}

/// Returns whether a condition can only hold in test builds.
fn needs_test(condition: &[TokenTree]) -> bool {
    match condition {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] => {
            let inside: Vec<_> = group.stream().into_iter().collect();
            let mut parts = inside
                .split(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ','))
                .filter(|p| !p.is_empty());
            match name.to_string().as_str() {
                "all" => parts.any(needs_test),
                "any" => parts.all(needs_test),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Returns the number of trees of the item (or field, variant, statement) at the front of these trees.
fn item(trees: &[TokenTree]) -> usize {
    let mut at = 0;
    while attribute(&trees[at..]).is_some() {
        at += 2;
    }
    let word = |at: usize| match trees.get(at) {
        Some(TokenTree::Ident(word)) => word.to_string(),
        _ => String::new(),
    };
    if word(at) == "pub" {
        at += 1 + usize::from(matches!(trees.get(at + 1), Some(TokenTree::Group(_))));
    }
    let (first, second) = (word(at), word(at + 1));
    let to_semicolon = match first.as_str() {
        "use" | "static" | "type" | "let" => true,
        "const" => !matches!(second.as_str(), "fn" | "unsafe" | "async" | "extern"),
        _ => false,
    };
    let has_body = matches!(
        first.as_str(),
        "fn" | "mod"
            | "struct"
            | "enum"
            | "union"
            | "impl"
            | "trait"
            | "unsafe"
            | "extern"
            | "async"
            | "const"
            | "macro_rules"
    );
    let mut angles = 0;
    for (n, tree) in trees.iter().enumerate().skip(at) {
        match tree {
            TokenTree::Punct(p) => match p.as_char() {
                ';' => return n + 1,
                ',' if !to_semicolon && !has_body && angles == 0 => return n + 1,
                '<' => angles += 1,
                '>' => angles -= 1,
                _ => {}
            },
            TokenTree::Group(g)
                if g.delimiter() == Delimiter::Brace && !to_semicolon && (has_body || n == at) =>
            {
                return n + 1;
            }
            _ => {}
        }
    }
    trees.len()
}
