function y = onnx_normalize_text(x, action, sensitive, stopwords)
% Words in small or large letters, without the stop words.
words = x(:);
if (~strcmp(action, 'NONE') || ~sensitive) && any(cellfun(@(w) any(double(w) > 127), words))
    error('onnx:text', 'only letters of ASCII have small and large forms here');
end
if ~isempty(stopwords)
    if sensitive
        words = words(~ismember(words, stopwords));
    else
        words = words(~ismember(lower(words), lower(stopwords)));
    end
end
if strcmp(action, 'LOWER')
    words = lower(words);
elseif strcmp(action, 'UPPER')
    words = upper(words);
end
if isempty(words)
    words = {''};
end
y = reshape(words, [numel(words), 1]);
end
