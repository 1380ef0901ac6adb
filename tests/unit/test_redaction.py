"""What looks like a secret is hidden, and nothing else."""

from __future__ import annotations

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otel_mlperf.redaction import HIDDEN, Redactor, is_secret_key
from otel_mlperf.secret_patterns import SHAPES

TOKENS = {
    "Hugging Face": "hf_" + "aB3" * 12,
    "OpenAI, Anthropic, OpenRouter, DeepSeek": "sk-proj-" + "aB3_" * 12,
    "Replicate": "r8_" + "aB3" * 13,
    "Groq": "gsk_" + "aB3" * 17,
    "xAI": "xai-" + "aB3" * 26,
    "Perplexity": "pplx-" + "aB3" * 16,
    "NVIDIA NGC and NIM": "nvapi-" + "aB3-" * 16,
    "Weights & Biases": "wandb_v1_" + "aB3" * 20,
    "LangSmith": "lsv2_pt_" + "ab3" * 14,
    "Pinecone": "pcsk_" + "aB3" * 22,
    "Kaggle": "KGAT_" + "ab3" * 11,
    "GitHub": "ghp_" + "aB3" * 12,
    "GitHub, fine-grained": "github_pat_" + "aB3" * 27,
    "GitLab": "glpat-" + "aB3_" * 5,
    "Bitbucket, Atlassian": "ATATT3" + "aB3_" * 20,
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + "aB3_" * 15,
    "npm": "npm_" + "aB3" * 12,
    "RubyGems": "rubygems_" + "ab3" * 16,
    "crates.io": "cio" + "aB3b" * 8,
    "NuGet": "oy2" + "a" * 42 + "4",
    "Docker Hub": "dckr_pat_" + "aB3" * 9,
    "AWS access key": "AKIAIOSFODNN7EXAMPLE",
    "Google API key": "AIza" + "aB3-" * 8 + "aB3",
    "Google OAuth": "GOCSPX-" + "aB3-" * 7,
    "Azure AD client secret": "aB38Q~" + "aB3_" * 8 + "aB",
    "Alibaba Cloud": "LTAI" + "aB3d" * 5,
    "Tencent Cloud": "AKID" + "aB3d" * 8,
    "DigitalOcean": "dop_v1_" + "ab34" * 16,
    "Databricks": "dapi" + "ab34" * 8,
    "Heroku": "HRKU-" + "aB3-" * 15,
    "HashiCorp Vault": "hvs." + "aB3_" * 24,
    "Terraform Cloud": "aB3d" * 3 + "aB.atlasv1." + "aB3_" * 16,
    "Pulumi": "pul-" + "ab34" * 10,
    "Doppler": "dp.pt." + "aB3d" * 10,
    "Fly.io": "fm2_" + "aB3+" * 20,
    "Netlify": "nfp_" + "aB3d" * 9,
    "Supabase": "sbp_" + "ab34" * 10,
    "PlanetScale": "pscale_tkn_" + "aB3_" * 10,
    "Grafana": "glsa_" + "aB3d" * 8 + "_ab34cd56",
    "New Relic": "NRAK-" + "AB3" * 9,
    "Sentry": "sntryu_" + "ab34" * 16,
    "Dynatrace": "dt0c01." + "AB3D" * 6 + "." + "AB3D" * 16,
    "Prefect": "pnu_" + "aB3d" * 9,
    "Slack": "xoxb-123456789012-" + "aB3" * 8,
    "Slack webhook": "hooks.slack.com/services/T0000/B0000/" + "aB3" * 8,
    "Discord webhook": "discord.com/api/webhooks/123456789/" + "aB3_" * 17,
    "Telegram bot": "123456789:AA" + "aB3" * 11,
    "Stripe": "sk_live_" + "aB3" * 8,
    "Square": "sq0csp-" + "aB3_" * 11,
    "PayPal Braintree": "access_token$production$ab34cd56$" + "ab34" * 8,
    "Shopify": "shpat_" + "ab34" * 8,
    "SendGrid": "SG." + "aB3" * 7 + "." + "aB3" * 14,
    "Mailgun": "key-" + "ab34" * 8,
    "Mailchimp": "ab34" * 8 + "-us20",
    "Twilio": "SK" + "ab34" * 8,
    "Postman": "PMAK-" + "ab34" * 6 + "-" + "ab3" * 11,
    "Linear, Notion": "lin_api_" + "aB3d" * 10,
    "age identity": "AGE-SECRET-KEY-1" + "AB3D" * 14,
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.aB3-_aB3",
}
"""By issuer: each begins and ends like a real one, and is none."""
NAMED = [
    "password=hunter22",
    "Password: hunter22",
    'api_key="hunter22"',
    "API-KEY: hunter22",
    "secret = 'hunter22'",
    "aws_secret_access_key=hunter22",
    "Authorization: Bearer hunter22",
    "Proxy-Authorization: Digest username=hunter22",
    "token=hunter22",
    "access_token: hunter22",
    "clientSecret: hunter22",
    "authToken=hunter22",
    "https://user:hunter22@example.com/x",
    "postgres://root:hunter22@db/x",
    "SENTRY_DSN=https://hunter22@example.com/1",
    '{"password": "hunter22"}',
    "{'Authorization': 'Basic hunter22'}",
    "{b'password': b'hunter22'}",
    'db.password = "a \\" hunter22"',
    "password => 'hunter22'",
    "PGPASSWORD=hunter22 psql",
    "MYSQL_PWD=hunter22",
    "WANDB_API_KEY=hunter22",
    "train.py --password hunter22 --lr 0.1",
    "train.py --api-key=hunter22",
    "Cookie: theme=dark; session=hunter22",
    "Set-Cookie: session=hunter22; Path=/",
    "login failed: error: password=hunter22",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=hunter22&X-Amz-Signature=hunter22&x=1",
    "https://a.blob.core.windows.net/c?sv=1&sig=hunter22%3D",
    "AccountName=x;AccountKey=hunter22==;EndpointSuffix=core.windows.net",
    "-----BEGIN RSA PRIVATE KEY-----\nhunter22\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter22 and then the text was cut",
    "the server says: bearer hunter22",
    "password=a,hunter22",
    "password=a;hunter22",
    "password=a&hunter22",
    "password: a)hunter22",
    "password=a]hunter22",
    "password=a}hunter22",
    "postgres://u:p@hunter22@host/db",
    "u:p@hunter22@host",
    "mysql://u:p/hunter22@host/db",
    "sqlalchemy: u:hunter22@host:5432/db",
    "mysql -u root -phunter22 db",
    "sshpass -p hunter22 ssh host",
    "sshpass -phunter22 ssh host",
    "curl -u user:hunter22 https://x",
    "curl --user user:hunter22 https://x",
    "redis-cli -a hunter22 ping",
    "docker login -u me -p hunter22 reg",
    "('password', 'hunter22')",
    "[('password','hunter22')]",
    '("api_key", "hunter22")',
    "['--password', 'hunter22']",
    "['--api-key','hunter22']",
    "{'password': ['hunter22', 'hunter22']}",
    "SecretStr('hunter22')",
    "password:\n  hunter22",
    "password: |\n  hunter22\n  x",
    "password: >-\n  hunter22",
    "- name: DB_PASSWORD\n  value: hunter22",
    "{'name': 'DB_PASSWORD', 'value': 'hunter22'}",
    '{"name":"API_KEY","value":"hunter22"}',
    "password%3Dhunter22",
    "https://x/?key=hunter22hunter22",
    "x-honeycomb-team=hunter22",
    "password is hunter22",
    "password was 'hunter22'",
    'wrong password "hunter22"',
    "passwort=hunter22",
    "passwords=hunter22",
    "pass=hunter22",
    "DB_PASS=hunter22",
    "pw=hunter22",
    "--pass hunter22",
    "--pw=hunter22",
    "os.environ['HF_TOKEN'] = 'hunter22'",
    "<password>hunter22</password>",
    '<add key="ApiKey" value="hunter22"/>',
    "password := hunter22",
    "password<-hunter22",
    "password == 'hunter22'",
    "password->hunter22",
    "password\thunter22",
    "password|hunter22",
    "machine api.wandb.ai login user password hunter22",
    '\\"password\\": \\"hunter22\\"',
    '{\\"api_key\\":\\"hunter22\\"}',
    "KeyError: ('api_key', 'hunter22')",
    "private_key_data=hunter22",
    "passwordHash: hunter22",
    "password2=hunter22",
    "secret_key_base: hunter22",
    "hmac_key=hunter22",
    "AZURE_STORAGE_KEY=hunter22",
    "license_key=hunter22",
    "storage_key=hunter22",
    "mysql -u root -p hunter22 db",
    "mysqldump -p hunter22",
    "['mysql', '-p', 'hunter22']",
    "mc alias set minio https://minio.example.com me hunter22",
    "mc --insecure alias set minio http://x:9000 me hunter22 --api s3v4",
    "mc config host add s3 http://x:9000 me hunter22",
    "['mc', 'alias', 'set', 'minio', 'http://x', 'me', 'hunter22']",
    "jdbc:oracle:thin:scott/hunter22@host:1521:orcl",
    "jdbc:oracle:thin:scott/hunter22@//host:1521/x",
    "jdbc:oracle:oci:scott/a@hunter22@host",
    "sqlplus scott/hunter22@orcl",
    "sqlplus -s scott/hunter22 @report.sql",
    "expdp scott/hunter22 schemas=x",
    "keytool -storepass hunter22",
    "keytool -keypass hunter22",
    "aws configure set aws_secret_access_key hunter22",
    "rclone config create x s3 secret_access_key hunter22",
    "ngrok config add-authtoken hunter22",
    "htpasswd -b file user hunter22",
    "htpasswd -nb user hunter22",
    "cqlsh -u me -p hunter22",
    "beeline -n me -p hunter22",
    "ipmitool -U me -P hunter22",
    "lftp -u me,hunter22 host",
    "openssl enc -k hunter22",
    "snmpwalk -v3 -A hunter22 host",
]
SETTINGS = [
    "set PGPASSWORD hunter22",
    "setx API_TOKEN hunter22",
    'setx API_TOKEN "hunter22" /M',
    "setenv WANDB_API_KEY hunter22",
    "set -gx API_TOKEN hunter22",
    "ENV TOKEN hunter22",
    "set password hunter22",
    "config set token hunter22",
    "export TOKEN='hunter22'",
    "npm config set //registry/:_authToken hunter22",
    "$env:TOKEN='hunter22'",
    '[Environment]::SetEnvironmentVariable("API_KEY", "hunter22", "User")',
    "SET PASSWORD FOR 'u'@'h' = 'hunter22'",
    "IDENTIFIED BY hunter22",
    "identified by 'hunter22'",
    "token: !!str hunter22",
    "password: !secret 'hunter22'",
    "password: !vault |\n  hunter22\n",
    "api_key: &key hunter22",
    "token: !<tag:yaml.org,2002:str> hunter22",
    "token ?= hunter22",
    "{name: TOKEN, value: hunter22}",
    "Variable(key=token, value=hunter22)",
    "--token=hunter22",
]
"""As shells, Dockerfiles, databases and YAML give a name its value."""
OBJECTS = [
    "Token(value='hunter22')",
    "Token(value=hunter22, n=1)",
    "Credentials(password='hunter22')",
    "Credentials('u', 'hunter22')",
    "HTTPBasicAuth('u', 'hunter22')",
    "SecretBytes(b'hunter22')",
    "SecretStr('hunter22')",
    "APIKeyCredential(key='hunter22')",
    "Cookie(value='hunter22')",
    'Secret { value: "hunter22" }',
    "Token{inner: hunter22}",
    "Secret(data={'x': 'hunter22'})",
    "Auth(token=SecretStr('hunter22'))",
]
"""As Python, Rust and others print what contains a secret."""
PINS = [
    "pin={}", "PIN: {}", '"pin": "{}"', "user_pin={}", "userPin={}", "pin code: {}", "pin is {}",
    "--pin {}", "--pin={}", "('pin', '{}')", "otp={}", "cvv: {}", "{{'pin': {}}}",
]  # fmt: skip
COMMIT = "3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90"
KEYED = [
    "export WANDB_API_KEY={}",
    "wandb key {}",
    "wandb login {}",
    "wandb: API key: {}",
    "api key {} invalid",
    "WANDB_API_KEY {}",
    "key={}",
    "wandb_key={}",
    "wandb.login(key='{}')",
    "invalid token {}",
    "token: {}",
]
"""Where a key of 40 hexadecimal digits, as W&B issues them, stands next to its name."""
HARMLESS = [
    "token_count=512",
    "pad_token_id=0 eos_token_id: 2",
    "tokenizer: fast",
    "max_tokens=10",
    "the password was wrong",
    "secretary: present",
    "author: me",
    "monkey=3 key=3 primary_key=7 keys: ['a']",
    "signature: (x: int) signal=9",
    "task-123 disk-sk sk-9 hf_hub SG.x",
    "basic training: 3",
    "bearer authentication failed",
    "shape [64, 3] and dtype float32",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "https://example.com/a@b?sort=signature",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py",
    "commit 3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90",
    "std::basic_string: allocate",
    "lr: 1e-3, wd=0.1",
    "git: 3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90",
    "sha=3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90",
    "trace_id=3dd735b0f3a1c2d4e5f60718293a4b5c",
    "checkpoint 3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90.pt",
    "sha256:ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34ab34",
    "md5 key 3dd735b0f3a1c2d4",
    "cache key 3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90",
    "revision='3dd735b0f3a1c2d4e5f60718293a4b5c6d7e8f90'",
    "ls -p data",
    "python -m train -p 8080",
    "mkdir -p /data/out",
    "cp -pr a b",
    "num -S 3",
    "train.py -s seed",
    "user@host",
    "me@example.com",
    "git@github.com:me/repo.git",
    "ssh me@host",
    "ratio 1:2@3",
    "12:30@Mon",
    "a:b@c",
    "model:7b@main",
    "image:tag@sha256:abcd1234",
    "loss@k: 3",
    "recall@10: 0.5",
    "https://pypi.org/@x/y",
    "('lr', 0.1)",
    "('tokens', 5)",
    "('token', 50256)",
    "special tokens: ['<s>']",
    "token '<s>' not found",
    "invalid token at position 5",
    "unexpected token ',' in JSON",
    "pass=3",
    "passes=2",
    "forward pass: 3 ms",
    "pass 1 of 2",
    "compass=north",
    "bypass=true",
    "key=value",
    "dict key 'a'",
    "KeyError: 'lr'",
    "the token is missing",
    "password is wrong",
    "password required",
    "no password given",
    "secret sharing",
    "auth failed",
    "auth is required",
    "pwd",
    "pwd /home/me",
    "num_key_value_heads=8",
    "key_dim=64",
    "keyframe: 2",
    "torch.Size([1, 2])",
    "tokenizer='gpt2'",
    "tokens/s=3",
    "basic block: 3",
    "-pipe",
    "-print",
    "gcc -pthread",
    "tar -Sxf a",
    "rsync -Pav a b",
    "kubectl -n x get pods -o yaml",
    "nvcc -pg",
    "perl -pe s",
    "sort -S 1G",
    "grep -P x",
    "find . -print0",
    "pip install -p x",
    "docker run -p 8080:80 img",
    "docker run -p8080:80 img",
    "curl -P",
    "sshpass -e ssh",
    "ssh -p 22 host",
    "ssh -p2222 host",
    "scp -P 22 a b",
    "nc -u host",
    "python -u train.py",
    "sort -u a:b",
    "sudo -u user ls",
    "docker run -u 1000:1000 img",
    "docker run --user 1000:1000 img",
    "torchrun --rdzv-endpoint host:29500",
    "2026-11-27T10:00:00Z",
    "module 'a.b' has no attribute 'c'",
    'File "/a/b.py", line 3, in forward',
    "key-value",
    "sig=3 digits",
    "cuda:0",
    "lr=1e-3,wd=0.1",
    "layers.0.attn.k_proj.weight",
    "mysql -u root -p mydb",
    "mysql -p < dump.sql",
    "mysql -u root -p\nEnter password",
    "mysql -S /tmp/mysql.sock db",
    "mysql -h host1 -P 3306",
    "mc alias list",
    "mc cp a1b2c3 minio/bucket",
    "the alias set of names is x1 y2 z3 w4",
    "jdbc:oracle:thin:@host:1521:orcl",
    "jdbc:oracle:thin:@//host:1521/orcl",
    "sqlplus / as sysdba",
    "sqlplus -s /nolog @a/b.sql",
    "actions/checkout@v4",
    "org/model@main",
    "aws configure set region eu-central-1",
    "config: weight_decay 1e-2",
    "htpasswd -c file user",
    "pin=17",
    "pin_memory=True",
    "pin_memory_device=1234",
    "spin=1234",
    "pins=1024",
    "failed to pin 4096 bytes",
    "pin: true",
    "openssl version -a",
    "set token limit to 5",
    "set SEED 7",
    "set secret sharing on",
    "set password for root",
    "tokens: 1024",
    "Token(value=50256)",
    "ENV PATH /usr/bin",
    "ARG TOKENS 5",
    "step, token, value=0.5",
    "kernels identified by name",
    "Tokenizer(value='bpe')",
    "Tokens { value: 3 }",
    "note: !important text",
]
LONG = [
    "a-" * 100_000, "=" * 100_000, "a=" * 50_000, "://" * 50_000, "bearer " * 20_000,
    "-----BEGIN PRIVATE KEY-----" * 5_000, "password='" * 20_000, "--a " * 30_000, "1:A" * 40_000,
    "mysql " * 30_000, "login -" * 30_000, "u:p@" * 40_000, "://a:b/" * 30_000,
    "password " * 20_000, "password=," * 20_000,
    "mc alias set " * 10_000, "htpasswd -b " * 10_000, "jdbc:oracle:a:b/" * 10_000,
    "sqlplus a/" * 20_000, "config a_key " * 10_000, "pin is " * 20_000,
    "set -a " * 20_000, "set PASSWORD " * 15_000, "Token(" * 20_000, "token: !a " * 15_000,
    "Token('a', " * 15_000, "Token { value: " * 10_000, "SET PASSWORD FOR a" * 8_000,
    "IDENTIFIED BY " * 10_000, "name: token, value: " * 8_000,
    "api key " * 20_000, "password: |\n " * 10_000, "password\": [" * 10_000,
]  # fmt: skip


def redact(text):
    return Redactor().text(text)


def test_every_shape_has_an_example():
    """None is documented that is not tried."""
    assert list(TOKENS) == [shape.issuer for shape in SHAPES]


@pytest.mark.fault("S10")
@pytest.mark.parametrize("issuer", TOKENS)
def test_tokens_are_hidden(issuer):
    """Tokens of known forms are blacked out, wherever they stand, and nothing around them."""
    token = TOKENS[issuer]

    assert redact(f"cannot use {token}, sorry") == f"cannot use {HIDDEN}, sorry"
    assert redact(f"({token})") == f"({HIDDEN})"


@pytest.mark.fault("S10")
@pytest.mark.parametrize("text", [*NAMED, *SETTINGS, *OBJECTS])
def test_named_secrets_are_hidden(text):
    """What is named as a secret is blacked out, and its name stays."""
    assert "hunter22" not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.fault("S10")
@pytest.mark.parametrize("text", PINS)
def test_short_numbers_are_hidden_by_their_name(text):
    """They are passwords of digits."""
    assert redact(text.format(1234)) == text.format(HIDDEN)


@pytest.mark.fault("S10")
def test_a_list_is_read_as_a_command_line():
    """The program is one item, its flag another, and the password a third."""
    redactor = Redactor()
    lines = [
        ["mysql", "-u", "root", "-p", "hunter22"],
        ["mysql", "-psecretly", "db"],
        ["mc", "alias", "set", "a", "http://x", "me", "secretly"],
        ["train.py", "-p", "8080", "a b"],
    ]

    assert [redactor.value("argv", line) for line in lines] == [
        ["mysql", "-u", "root", "-p", HIDDEN],
        ["mysql", f"-p{HIDDEN}", "db"],
        ["mc", "alias", "set", "a", "http://x", "me", HIDDEN],
        ["train.py", "-p", "8080", "a b"],
    ]
    assert redactor.hidden == 3


@pytest.mark.fault("S10")
@pytest.mark.parametrize("text", KEYED)
def test_a_hexadecimal_key_is_hidden_next_to_its_name(text):
    """The same digits next to the word commit are no secret, and stay."""
    assert redact(text.format(COMMIT)) == text.format(HIDDEN)


@pytest.mark.fault("S10")
def test_what_is_around_a_secret_stays():
    """The name, the host and the other arguments are what a reader searches for."""
    assert redact("postgres://u:p@ss@db/x") == f"postgres://{HIDDEN}@db/x"
    assert redact("mysql -u root -phunter22 db") == f"mysql -u root -p{HIDDEN} db"
    assert redact("password=a,B,lr=3") == f"password={HIDDEN},lr=3"
    assert redact("(('password', 'a'), ('lr', 'b'))") == f"(('password', {HIDDEN}), ('lr', 'b'))"
    assert redact("login basic dXNlcjpodW50ZXIyMg==!") == f"login basic {HIDDEN}!"


@pytest.mark.fault("S10")
def test_values_are_hidden_by_the_item_before_them():
    """Command lines, pairs and Kubernetes' variables name a secret in the item before it."""
    redactor = Redactor()

    assert redactor.values({
        "argv": ["x.py", "--password", "hunter22", "--lr", "0.1"], "pair": ["password", "hunter22"],
        "pairs": [["api_key", "hunter22"], ["lr", "a"]], "names": ["user", "token", "id"],
        "env": [{"name": "DB_PASSWORD", "value": "hunter22"}, {"name": "LR", "value": "0.1"}],
        "pw": "hunter22", "forward_pass": "first", "key": COMMIT, "sha": COMMIT,
        "cache_key": COMMIT, "pin": 1234, "gpio": {"pin": 17}, "otp": "123456",
    }) == {
        "argv": ["x.py", "--password", HIDDEN, "--lr", "0.1"], "pair": ["password", HIDDEN],
        "pairs": [["api_key", HIDDEN], ["lr", "a"]], "names": ["user", "token", "id"],
        "env": [{"name": "DB_PASSWORD", "value": HIDDEN}, {"name": "LR", "value": "0.1"}],
        "pw": HIDDEN, "forward_pass": "first", "key": HIDDEN, "sha": COMMIT,
        "cache_key": COMMIT, "pin": HIDDEN, "gpio": {"pin": 17}, "otp": HIDDEN,
    }  # fmt: skip


@pytest.mark.fault("S10")
@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text):
    """Text that only looks a little like a secret stays as it is."""
    assert redact(text) == text


@example("'0")
@given(st.text())
def test_what_was_hidden_is_hidden_once(text):
    """Looking through a text again changes nothing and counts nothing."""
    once = redact(f"password={text} {text}")
    again = Redactor()

    assert again.text(once) == once
    assert again.hidden == 0


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:8])
def test_length_does_not_matter(text):
    """A text as long as a book is looked through once, not once for each of its words."""
    assert "hunter22" not in redact(f"{text}\ndb_password=hunter22")


@pytest.mark.fault("S10")
def test_values_are_hidden_by_their_key():
    """Text under the name of a secret is, in lists and mappings too; a number mostly stays."""
    redactor = Redactor()

    assert redactor.values({
        "api_key": "x", "hf.token": "y", "token": 50256, "password": 1234, "token_count": 5,
        "empty": "", "secret": "", "hosts": ["a", "https://u:p@b"],
        "database": {"passwd": "z", "port": 5432}, "credentials": {"user": "me", "ids": ["q", 1]},
        "url": "https://u:p@b", "lr": 0.1, "on": True, "none": None,
    }) == {
        "api_key": HIDDEN, "hf.token": HIDDEN, "token": 50256, "password": HIDDEN, "token_count": 5,
        "empty": "", "secret": "", "hosts": ["a", f"https://{HIDDEN}@b"],
        "database": {"passwd": HIDDEN, "port": 5432},
        "credentials": {"user": HIDDEN, "ids": [HIDDEN, 1]},
        "url": f"https://{HIDDEN}@b", "lr": 0.1, "on": True, "none": None,
    }  # fmt: skip
    assert redactor.hidden == 8


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "dbPassword",
        "PGPASSWORD",
        "aws.secret-access-key",
        "apiKey",
        "API_KEY",
        "x-api-key",
        "HF_TOKEN",
    ],
)
def test_keys_of_secrets(name):
    """A key is known in every writing."""
    assert is_secret_key(name)


@pytest.mark.parametrize("name", ["token_count", "tokens", "key", "primary_key", "author", "", "1"])
def test_keys_of_none(name):
    """A key that only has such a word in it is none."""
    assert not is_secret_key(name)


def test_the_count_is_told_also_of_what_was_before():
    """Who begins to listen gets what was hidden until then, then each as it comes."""
    told = []
    redactor = Redactor()
    redactor.text("password=a token=b")

    redactor.count_with(told.append)
    redactor.text("nothing")
    redactor.text("password=c")

    assert told == [2, 1]
    assert redactor.hidden == 0


def test_nothing_is_compiled_before_there_is_a_text():
    """Importing it costs a training program no time for patterns."""
    import subprocess

    code = "import otel_mlperf.redaction as r; print(r._tokens.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "0"
