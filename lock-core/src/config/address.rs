//! [`Address`]: the parsed parts of a URL.

use super::secret::Secret;
use std::fmt;

/// The address of a store, as the URL names it.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) scheme: String,
    pub(super) user: Option<Secret>,
    pub(super) password: Option<Secret>,
    pub(super) hosts: Vec<Host>,
    pub(super) path: String,
}

/// One host of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Host {
    /// The name or address, without the brackets of IPv6.
    pub name: String,
    /// The port, if the URL has one.
    pub port: Option<u16>,
}

impl Address {
    /// Returns the address `memory://`.
    pub(super) fn memory() -> Self {
        let scheme = "memory".to_owned();
        Self {
            scheme,
            user: None,
            password: None,
            hosts: Vec::new(),
            path: String::new(),
        }
    }

    /// Parses a URL into the address and its options. Error messages quote no text that may belong
    /// to a password.
    pub(super) fn parse(url: &str) -> Result<(Self, Vec<(String, String)>), String> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(
                "the URL has no `scheme://`, as in `memory://` or `redis://127.0.0.1:6379`".into(),
            );
        };
        if scheme.is_empty()
            || !scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        {
            return Err(
                "the URL's scheme may have letters, digits, `+`, `-` and `.` only".to_owned(),
            );
        }
        refuse_unescaped(rest)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        userinfo.map_or(Ok(()), refuse_repeated)?;
        let (user, password) = match userinfo.map(|info| info.split_once(':').unwrap_or((info, "")))
        {
            Some((user, password)) => (decoded("user", user)?, decoded("password", password)?),
            None => (None, None),
        };
        let hosts = match hosts {
            "" => Vec::new(),
            hosts => hosts
                .split(',')
                .map(Host::parse)
                .collect::<Result<_, _>>()?,
        };
        let options = url::form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let path = decoded("path", path)?.map_or_else(String::new, |path| path.reveal().to_owned());
        Ok((
            Self {
                scheme: scheme.to_ascii_lowercase(),
                user,
                password,
                hosts,
                path,
            },
            options,
        ))
    }
}

/// Prints the address as a URL, with `<redacted>` in place of user and password: a password may
/// have been given as the user.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        if self.user.is_some() || self.password.is_some() {
            f.write_str("<redacted>@")?;
        }
        for (at, Host { name, port }) in self.hosts.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (open, close) = if name.contains(':') {
                ("[", "]")
            } else {
                ("", "")
            };
            write!(f, "{comma}{open}{name}{close}")?;
            port.map_or(Ok(()), |port| write!(f, ":{port}"))?;
        }
        if !self.path.is_empty() {
            write!(f, "/{}", self.path.escape_debug())?;
        }
        Ok(())
    }
}

/// Refuses characters that most likely belong to an unescaped password, and would otherwise be read
/// as a part of the hosts, the path or the options.
fn refuse_unescaped(rest: &str) -> Result<(), String> {
    if rest.contains('#') {
        return Err(
            "the URL has a `#fragment`, which is not supported (in a password write %23)"
                .to_owned(),
        );
    }
    if rest
        .find(['/', '?'])
        .is_some_and(|end| rest[end..].contains('@'))
    {
        return Err(
            "the URL has an `@` behind its hosts: in a user or password write `/` as %2F, `?` as \
             %3F and `@` as %40, and anywhere else `@` as %40"
                .to_owned(),
        );
    }
    Ok(())
}

/// Refuses a URL that has user and password before a host other than the first, or before each of
/// several hosts: otherwise all text before the last `@` would be read as user and password.
fn refuse_repeated(userinfo: &str) -> Result<(), String> {
    let Some((first, rest)) = userinfo.split_once(',') else {
        return Ok(());
    };
    let (_, end) = first.split_once(':').unwrap_or((first, ""));
    // The text before the comma is either a host, with or without a port, or a user and the
    // beginning of a password that contains a comma. (A user that contains a comma is refused.)
    let is_port = end.len() <= 5 && end.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = is_port || first.starts_with('[');
    if !first.contains('@') && !rest.contains('@') && !is_host {
        return Ok(());
    }
    Err(
        "the URL has an `@` among its hosts: user and password stand once, before the first host, \
         and are used for all of them; in a user or password write `@` as %40 and `,` as %2C"
            .to_owned(),
    )
}

impl Host {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "`{}` in the URL is not a host with an optional port, as in `example.org:6379` or \
                `[::1]:6379`{why}",
                text.escape_debug()
            )
        };
        // The `url` crate parses hosts; with an unknown scheme it adds no default port.
        let url = url::Url::parse(&format!("host://{text}"))
            .map_err(|error| wrong(&format!(": {error}")))?;
        let name = match url.host() {
            Some(url::Host::Domain(name)) => name.to_owned(),
            Some(url::Host::Ipv4(address)) => address.to_string(),
            Some(url::Host::Ipv6(address)) => address.to_string(),
            None => return Err(wrong("")),
        };
        if name.is_empty() || url.port() == Some(0) || text.ends_with(':') {
            return Err(wrong(""));
        }
        Ok(Self {
            name,
            port: url.port(),
        })
    }
}

/// Decodes a percent-encoded part of a URL; `None` if it is empty.
fn decoded(part: &str, text: &str) -> Result<Option<Secret>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match percent_encoding::percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(_) => Err(format!(
            "the {part} in the URL is not UTF-8 when its %-escapes are resolved"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Secret};
    use std::time::Duration;

    #[test]
    fn url_is_parsed_into_its_parts() {
        let config =
            Config::from_url("redis://me:p%40ss@a.example:7000,[::1]:7001,c/3?watchdog=10s&pool=2")
                .unwrap();
        assert_eq!(
            (config.scheme(), config.path(), config.pool()),
            ("redis", "3", 2)
        );
        assert_eq!(
            (config.user(), config.password().map(Secret::reveal)),
            (Some("me"), Some("p@ss"))
        );
        let hosts: Vec<_> = config
            .hosts()
            .iter()
            .map(|host| (host.name.as_str(), host.port))
            .collect();
        assert_eq!(
            hosts,
            [("a.example", Some(7000)), ("::1", Some(7001)), ("c", None)]
        );
        assert_eq!(config.watchdog(), Duration::from_secs(10));
        config.check().unwrap();
    }

    #[test]
    fn password_without_user_is_accepted_and_not_shown() {
        let config = Config::from_url("redis://:s3cret@localhost").unwrap();
        assert_eq!(
            (config.user(), config.password().map(Secret::reveal)),
            (None, Some("s3cret"))
        );
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    /// Checks each scheme of a store on Redis servers whose URL names hosts.
    #[test]
    fn credentials_before_a_later_host_are_refused_without_the_secret() {
        for scheme in [
            "redis",
            "rediss",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
            "redlock",
            "redlocks",
        ] {
            for hosts in [
                "u:s3cr@a:26379,u:s3cr@b:26379",
                "u:s3cr@a,u:s3cr@b,u:s3cr@c",
                ":s3cr@a:1,:s3cr@b:1",
                "a:26379,u:s3cr@b:26379",
                "a,u:s3cr@b",
                "a,b,u:s3cr@c",
                "u:s3cr@a:1,b:2,u:s3cr@c:3",
                "u:s3cr@[::1]:1,u:s3cr@[::2]:1",
                "[::1]:1,u:s3cr@[::2]:1",
                "u:s3c@r,s3cr@a",
            ] {
                let error = Config::from_url(&format!("{scheme}://{hosts}/m")).unwrap_err();
                let shown = format!("{error} {error:?}");
                assert!(
                    error.is_configuration() && shown.contains("`@`"),
                    "{hosts}: {shown}"
                );
                assert!(!shown.contains("s3c"), "{hosts}: {shown}");
            }
            for (hosts, password) in [
                ("u:p@a:1,b:2", "p"),
                ("u:p@ss@a", "p@ss"),
                ("u:p,ss@a,b", "p,ss"),
                ("u:p%40a%2Cu:q@a,b", "p@a,u:q"),
                ("u:1%2Cp@a", "1,p"),
            ] {
                let config = Config::from_url(&format!("{scheme}://{hosts}/m")).unwrap();
                assert_eq!(
                    config.password().map(Secret::reveal),
                    Some(password),
                    "{hosts}"
                );
            }
        }
    }

    #[test]
    fn misplaced_password_is_not_shown() {
        for url in [
            "redis://user:s3cr/3t@host",
            "redis://user:s3cr?3t@host",
            "redis://u:12/s3cret@h",
            "redis://u:s3cr#t@h",
            "redis://u:%ff-s3cr@h",
            "redis://u:s3cr@h:port",
            "redis://h?password=s3cr",
            "s3cr@host",
            "redis://u:s3cr@h?pool=1&pool=2",
        ] {
            let shown = match Config::from_url(url) {
                Ok(config) => {
                    format!(
                        "{config:?} {config:#?} {:?}",
                        config.refuse_unknown_options(&[])
                    )
                }
                Err(error) => format!("{error} {error:?} {:?}", std::error::Error::source(&error)),
            };
            for part in ["s3cr", "3t@", "cret"] {
                assert!(!shown.contains(part), "{url}: {shown}");
            }
        }
    }
}
