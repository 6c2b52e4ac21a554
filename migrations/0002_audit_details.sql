-- What a decision of the controller rested on, as JSON.

-- +goose Up
ALTER TABLE audit ADD COLUMN details TEXT;

-- +goose Down
ALTER TABLE audit DROP COLUMN details;
