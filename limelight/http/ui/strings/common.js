// What every page says, in English and in Korean.

export const en = {
  keyTitle: "This server needs an API key",
  keyKept: "It is kept in this tab until you close it.",
  keyWrong: "The server did not accept that key. Try another one.",
  key: "API key",
  useKey: "Use this key",
  chat: "Chat",
  close: "Close",
  loading: "The model is loading…",
};

export const ko = {
  keyTitle: "이 서버에는 API 키가 필요합니다",
  keyKept: "키는 이 탭을 닫을 때까지만 보관됩니다.",
  keyWrong: "서버가 그 키를 받아들이지 않았습니다. 다른 키를 입력하세요.",
  key: "API 키",
  useKey: "이 키 사용",
  chat: "채팅",
  close: "닫기",
  loading: "모델을 불러오는 중…",
};
