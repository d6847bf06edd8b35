// Made by `make sdk` from the OpenAPI document. Do not edit.
export {};
