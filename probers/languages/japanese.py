"""Japanese: numbers, dates with the years of eras, quoted works, katakana names with "・" and a list of places."""

from __future__ import annotations

from .base import Language, borders, either, units, words

_PLACES = words(
    """日本 中国 韓国 北朝鮮 台湾 香港 インド ロシア ソビエト連邦 ソ連 アメリカ合衆国 アメリカ イギリス フランス ドイツ イタリア
    スペイン ポルトガル オランダ ベルギー スイス オーストリア スウェーデン ノルウェー デンマーク フィンランド ポーランド ハンガリー
    ギリシャ トルコ エジプト カナダ メキシコ ブラジル アルゼンチン オーストラリア ニュージーランド ベトナム タイ シンガポール
    ヨーロッパ アジア アフリカ ロンドン パリ ベルリン ローマ ウィーン モスクワ ニューヨーク ワシントン ロサンゼルス 北京 上海
    東京 大阪 京都 名古屋 横浜 神戸 福岡 札幌 仙台 広島 長崎 奈良 金沢 新潟 東京都 北海道 京都府 大阪府 青森県 岩手県 宮城県
    秋田県 山形県 福島県 茨城県 栃木県 群馬県 埼玉県 千葉県 神奈川県 新潟県 富山県 石川県 福井県 山梨県 長野県 岐阜県 静岡県
    愛知県 三重県 滋賀県 兵庫県 奈良県 和歌山県 鳥取県 島根県 岡山県 広島県 山口県 徳島県 香川県 愛媛県 高知県 福岡県 佐賀県
    長崎県 熊本県 大分県 宮崎県 鹿児島県 沖縄県 太平洋 大西洋 日本海 富士山 琵琶湖""",
)
#: Words in katakana, rows of which name nothing.
_COMMON = "テレビ|ラジオ|ゲーム|スポーツ|サービス|システム|ホテル|レストラン|ビル|バス|トラック|コンピュータ|ソフトウェア|ハードウェア|データ"
_KANA = r"[ァ-ヴー]+"
_STOPS = r"(?![\p{Han}ァ-ヺー])"

JAPANESE = Language(
    code="ja", name="Japanese", spaced=False,
    function_words=words("の は が を に で と も から まで より など"),
    borders=borders(titles="", short="", starters="", closing="」』", goes_on="[とっはがをにのでもやな、]"),
    works=("『』", "「」", "《》"), sure="『《",
    announced="小説|映画|曲|歌|アルバム|シングル|番組|ドラマ|漫画|アニメ|ゲーム|絵画|作品|詩|著書|雑誌|新聞|論文|戯曲|オペラ|物語",
    dates=(
        r"(?P<bc>紀元前|前)(?P<y>\d{1,4})年",
        r"(?:西暦)?(?<!\d)(?P<y>\d{4}|[〇一二三四五六七八九]{4})年?\s?[–~～〜-]\s?(?P<y2>\d{4}|[〇一二三四五六七八九]{4})年",
        r"(?:西暦)?(?<!\d)(?P<y>\d{3,4}|[〇一二三四五六七八九]{4})年(?!代)(?:[（(](?:{reign})(?:元|{n})年[)）])?(?:\s?(?P<m>{n})月(?:\s?(?P<d>{n})日)?)?(?!間)",
        r"(?P<reign>{reign})(?P<count>元|{n})年(?:[（(]\d{4}年[)）])?(?:(?P<m>{n})月(?:(?P<d>{n})日)?)?",
        r"(?<![\d第])(?P<m>{n})月(?P<d>{n})日",
        r"(?<!\d)(?P<y>\d{4})(?P<sign>[-/.])(?P<m>\d\d?)(?P=sign)(?P<d>\d\d?)(?!\d)",
        r"(?P<bc>紀元前|前)?(?<!\d)(?P<century>{n})世紀", r"(?<!\d)(?P<decade>\d{3}0)年代",
        r"(?<![\d.,第])(?P<m>1[0-2]|[1-9])月(?!\d)",
    ),
    reigns={"明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018},
    decimal=".", thousands=",",
    units=units(
        """%|％|パーセント:% キロメートル:km 平方キロメートル:km2 ヘクタール:ha 平方メートル:m2 立方メートル:m3 メートル:m
        センチメートル|センチ:cm ミリメートル|ミリ:mm キログラム:kg グラム:g トン:t リットル:l 円:yen ドル:dollar ユーロ:euro ポンド:pound
        年間|年:year か月|ヶ月|カ月|か月間|ヶ月間:month 週間:week 日間:day 時間:hour 分間:minute 秒:second 人|名:people 歳|才:歳
        個:個 冊:冊 本:本 枚:枚 台:台 匹:匹 頭:頭 回:回 巻:巻 話:話 曲:曲 位:位 番目:番目 回目:回目 つ:つ 社:社 校:校 階:階 作:作
        両:両 隻:隻 機:機 度:degree マイル:mile""",
    ),
    names=(
        rf"(?<![ァ-ヺー・])(?P<name>(?!(?:{_COMMON})・){_KANA}(?:[・＝=](?!(?:{_COMMON})(?![ァ-ヺー])){_KANA})+)(?![ァ-ヺー・])",
        rf"(?<![\p{{Han}}ァ-ヺー・])(?P<name>{either(_PLACES)}){_STOPS}",
        r"(?<![A-Za-z\d])(?P<name>\p{Lu}[\p{Latin}]*(?:[ -]\p{Lu}[\p{Latin}]*)*)(?![A-Za-z\d])",
    ),
    plain=words("日本人"), places=_PLACES,
)  # fmt: skip
